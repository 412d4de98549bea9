#pragma once

#include "rendezvous/message.hpp"
#include "rendezvous/sha256.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace headway::comm {

/// Version of everything that follows the handshake. The handshake itself keeps its form, so that any two versions can
/// tell each other what differs.
inline constexpr int kProtocolVersion = 3;

/// Drawn by each process for each group: tells a rank from an earlier or a foreign one at the same address.
using InstanceId = std::array<std::byte, 16>;

/// One thing that all ranks must have alike, as text.
struct AgreementField {
  std::string name;
  std::string value;
};

/// One end of a handshake.
struct HandshakeSelf {
  int rank = 0;
  int size = 0;
  InstanceId instance{};
  std::string secret;
  std::vector<AgreementField> fields;
};

/// Mutual challenge and response between two ranks, without input or output of its own:
///
///     connector -> acceptor   hello: ranks, instances, nonce, fields
///     acceptor  -> connector  hello
///     connector -> acceptor   proof: HMAC(secret, "connector", hash of both hellos)
///     acceptor  -> connector  proof: HMAC(secret, "acceptor", hash of both hellos)
///
/// A refusal with its reason may take the place of any of the acceptor's messages. The fields are compared by both
/// sides, and only after the other has proved that it knows the secret: a stranger cannot make a rank fail.
class Handshake {
 public:
  enum class Outcome {
    kGoing,
    kDone,
    kStranger,      ///< The other side is not a rank of this group, as far as can be known; try elsewhere.
    kRefused,       ///< The other side does not accept us, or does not know the secret.
    kDisagreement,  ///< The other side is a rank of this group, but differs in a field.
  };

  using Self = std::shared_ptr<HandshakeSelf const>;

  /// The side that opens the connection, to a rank whose instance its contact gave.
  static Handshake connect(Self self, int peer, InstanceId peer_instance);
  static Handshake connect(HandshakeSelf self, int peer, InstanceId peer_instance);
  /// The side that accepts.
  static Handshake accept(Self self);
  static Handshake accept(HandshakeSelf self);

  /// Bytes to read next, at most; never beyond the handshake's end. 0 when nothing is to be read.
  [[nodiscard]] std::size_t wanted() const;
  /// Takes at most wanted() bytes that came from the other side.
  void receive(std::span<std::byte const> bytes);
  /// Bytes to send, each given once.
  [[nodiscard]] std::vector<std::byte> take_output();

  [[nodiscard]] Outcome outcome() const { return outcome_; }
  /// For the connector: the acceptor is the process that is looked for, as far as it says so itself, and its proof is
  /// what is missing.
  [[nodiscard]] bool is_greeted() const { return !peer_hello_.empty(); }
  /// What went wrong, naming ranks, fields and values; empty while going and when done.
  [[nodiscard]] std::string const& error() const { return error_; }
  /// The other side's rank and instance; proved only once outcome() is kDone or kDisagreement.
  [[nodiscard]] int peer() const { return peer_; }
  [[nodiscard]] InstanceId const& peer_instance() const { return peer_instance_; }

 private:
  enum class Role : std::uint32_t { kConnector = 1, kAcceptor = 2 };

  Handshake(Role role, Self self, int peer, InstanceId peer_instance);
  void send_hello();
  void send_proof();
  void on_message(Message const& message);
  void on_hello(std::span<std::byte const> body);
  void on_proof(std::span<std::byte const> body);
  void on_refusal(std::span<std::byte const> body);
  [[nodiscard]] std::string check_hello(std::span<std::byte const> body);
  [[nodiscard]] std::string differences() const;
  [[nodiscard]] Digest proof_of(Role role);
  void fail(Outcome outcome, std::string error);
  /// Fails, and tells the other side `told`.
  void refuse(Outcome outcome, std::string const& error, std::string const& told);

  Role role_;
  Self self_;
  int peer_;
  InstanceId peer_instance_;
  std::vector<AgreementField> peer_fields_;
  std::vector<std::byte> own_hello_;
  std::vector<std::byte> peer_hello_;
  std::optional<Digest> transcript_;  ///< Hash of both hellos in the order in which they were sent.
  bool fields_agree_ = false;         ///< Byte by byte, as they do nearly always.
  MessageReader reader_;
  std::vector<std::byte> output_;
  Outcome outcome_ = Outcome::kGoing;
  std::string error_;
};

/// Text of a refusal or failure message; printable, bounded.
[[nodiscard]] std::vector<std::byte> encode_text(std::string_view text);
[[nodiscard]] std::string decode_text(std::span<std::byte const> body);

}  // namespace headway::comm
