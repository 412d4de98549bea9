// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bootstrap/message.hpp"
#include "bootstrap/sha256.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace headway::comm {

/// Version of everything after the handshake. The handshake itself keeps its form, so that any two versions can report
/// what differs.
inline constexpr int kProtocolVersion = 4;

/// Random number drawn by each process for each group. A rank publishes it beside its host and port. It distinguishes
/// the rank from an earlier or a foreign process at the same host and port.
using InstanceId = std::array<std::byte, 16>;

/// A setting that must be equal on all ranks, as text.
struct AgreementField {
  std::string name;
  std::string value;
};

/// Local data of one end of a handshake.
struct HandshakeSelf {
  int rank = 0;
  int size = 0;
  InstanceId instance{};
  std::string secret;
  std::vector<AgreementField> fields;
};

/// Mutual challenge and response between two ranks. It does no input or output itself:
///
///     connector -> acceptor   hello: ranks, instances, nonce, fields
///     acceptor  -> connector  hello
///     connector -> acceptor   proof: HMAC(secret, "connector", hash of both hellos)
///     acceptor  -> connector  proof: HMAC(secret, "acceptor", hash of both hellos)
///
/// A refusal with its reason may replace any message of the acceptor. Both sides compare the fields only after the
/// other has proved that it knows the secret, so a stranger cannot make a rank fail.
class Handshake {
 public:
  enum class Outcome {
    kGoing,
    kDone,
    kStranger,      ///< The other side seems not to be a rank of this group; try another host and port.
    kRefused,       ///< The other side rejects this one, or does not know the secret.
    kDisagreement,  ///< The other side is a rank of this group and differs in a field.
  };

  using Self = std::shared_ptr<HandshakeSelf const>;

  /// The side that opens the connection. `peer_instance` is what the peer published.
  static Handshake connect(Self self, int peer, InstanceId peer_instance);
  static Handshake connect(HandshakeSelf self, int peer, InstanceId peer_instance);
  /// The side that accepts the connection.
  static Handshake accept(Self self);
  static Handshake accept(HandshakeSelf self);

  /// Largest number of bytes to read next, never beyond the end of the handshake. 0 if nothing is to be read.
  [[nodiscard]] std::size_t wanted() const;
  /// Processes at most wanted() bytes from the other side.
  void receive(std::span<std::byte const> bytes);
  /// Bytes to send. Each is returned once.
  [[nodiscard]] std::vector<std::byte> take_output();

  [[nodiscard]] Outcome outcome() const { return outcome_; }
  /// Connector only: the acceptor claims to be the wanted process, and only its proof is missing.
  [[nodiscard]] bool is_greeted() const { return !peer_hello_.empty(); }
  /// Error naming ranks, fields and values; empty while unfinished and after success.
  [[nodiscard]] std::string const& error() const { return error_; }
  /// The other side's rank and instance. Authenticated only once outcome() is kDone or kDisagreement.
  [[nodiscard]] int peer() const { return peer_; }
  [[nodiscard]] InstanceId const& peer_instance() const { return peer_instance_; }

 private:
  enum class Role : std::uint32_t { kConnector = 1, kAcceptor = 2 };

  Handshake(Role role, Self self, int peer, InstanceId peer_instance);
  void send_hello();
  void send_proof();
  /// Checks the order of messages and dispatches them.
  void on_message(Message const& message);
  void on_hello(std::span<std::byte const> body);
  void on_proof(std::span<std::byte const> body);
  void on_refusal(std::span<std::byte const> body);
  /// Parses the other side's hello and stores its content. @returns the error, or an empty text.
  [[nodiscard]] std::string check_hello(std::span<std::byte const> body);
  /// Fields that differ, for an error message; empty if none do.
  [[nodiscard]] std::string differences() const;
  /// The proof that the side in `role` must send.
  [[nodiscard]] Digest proof_of(Role role);
  /// Ends the handshake without a message to the other side.
  void fail(Outcome outcome, std::string error);
  /// Fails and sends `told` to the other side.
  void refuse(Outcome outcome, std::string const& error, std::string const& told);

  Role role_;
  Self self_;
  int peer_;  ///< Connector: the wanted rank. Acceptor: -1 until the hello has arrived.
  InstanceId peer_instance_;
  std::vector<AgreementField> peer_fields_;
  std::vector<std::byte> own_hello_;
  std::vector<std::byte> peer_hello_;  ///< Empty until it has arrived.
  std::optional<Digest> transcript_;   ///< Hash of both hellos in the order in which they were sent.
  bool fields_agree_ = false;          ///< True if both field lists are equal byte by byte, the common case.
  MessageReader reader_;
  std::vector<std::byte> output_;
  Outcome outcome_ = Outcome::kGoing;
  std::string error_;
};

struct Agreement;

/// Fields that the handshake compares: protocol version, byte order, and every setting that all ranks must share.
[[nodiscard]] std::vector<AgreementField> fields_of(Agreement const& agreement);

/// Body of a refusal or failure message: printable, of bounded length.
[[nodiscard]] std::vector<std::byte> encode_text(std::string_view text);
[[nodiscard]] std::string decode_text(std::span<std::byte const> body);
/// A text of a peer that may be a stranger, for logs and errors.
[[nodiscard]] std::string printable(std::string text);

}  // namespace headway::comm
