#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace headway::comm {

enum class MessageKind : std::uint8_t {
  kHello = 1,    ///< Who speaks, to whom, a nonce, and what must agree.
  kProof = 2,    ///< Knows the secret.
  kRefusal = 3,  ///< Will not connect, and why.
  kReady = 4,    ///< Connected with all ranks.
  kFailure = 5,  ///< The rendezvous failed, where and why.
  kContact = 6,  ///< To rank 0: how the sender can be reached.
  kContacts = 7  ///< From rank 0: how all ranks can be reached.
};

/// One message of the rendezvous: 4 bytes of magic, 4 of kind, 4 of body length, the body; all little endian.
struct Message {
  MessageKind kind{};
  std::vector<std::byte> body;
};

inline constexpr std::size_t kMessagePrefixBytes = 12;
/// Longest body that is read from a process that has not proved who it is.
inline constexpr std::size_t kMaxMessageBody = 16 * 1024;
/// Longest body between ranks that are connected: the contacts of all ranks, about 400 bytes each.
inline constexpr std::size_t kMaxMemberMessageBody = 64 * 1024 * 1024;

/// @throws UsageError if the body is longer than kMaxMemberMessageBody.
[[nodiscard]] std::vector<std::byte> encode_message(MessageKind kind, std::span<std::byte const> body);

/// Assembles messages from a byte stream without ever asking for a byte beyond the current message.
class MessageReader {
 public:
  /// `sure_bytes`: the sender says no more than one message of at least so many bytes, or one that is shorter, before
  /// it has an answer. So many may be asked for at once.
  explicit MessageReader(std::size_t max_body = kMaxMessageBody, std::size_t sure_bytes = kMessagePrefixBytes)
      : max_body_(max_body), sure_bytes_(sure_bytes) {}

  /// How many bytes may be read for the next step; 0 once a message is there or the stream is no rendezvous.
  [[nodiscard]] std::size_t wanted() const;
  /// Takes at most wanted() bytes.
  void feed(std::span<std::byte const> bytes);
  /// The message, once it is complete; then the next one may follow.
  [[nodiscard]] std::optional<Message> take();
  /// Why this is not a rendezvous message; empty while it may be one.
  [[nodiscard]] std::string_view error() const { return error_; }

 private:
  void parse_prefix();

  std::size_t max_body_;
  std::size_t sure_bytes_;
  std::vector<std::byte> bytes_;
  std::size_t body_bytes_ = 0;
  bool in_body_ = false;
  std::string_view error_;
};

}  // namespace headway::comm
