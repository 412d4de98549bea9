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
};

/// One message of the rendezvous: 4 bytes of magic, 4 of kind, 4 of body length, the body; all little endian.
struct Message {
  MessageKind kind{};
  std::vector<std::byte> body;
};

inline constexpr std::size_t kMessagePrefixBytes = 12;
inline constexpr std::size_t kMaxMessageBody = 16 * 1024;

/// @throws UsageError if the body is longer than kMaxMessageBody.
[[nodiscard]] std::vector<std::byte> encode_message(MessageKind kind, std::span<std::byte const> body);

/// Assembles messages from a byte stream without ever asking for a byte beyond the current message.
class MessageReader {
 public:
  /// How many bytes are missing to the next step; 0 once a message is there or the stream is no rendezvous.
  [[nodiscard]] std::size_t wanted() const;
  /// Takes at most wanted() bytes.
  void feed(std::span<std::byte const> bytes);
  /// The message, once it is complete; then the next one may follow.
  [[nodiscard]] std::optional<Message> take();
  /// Why this is not a rendezvous message; empty while it may be one.
  [[nodiscard]] std::string_view error() const { return error_; }

 private:
  void parse_prefix();

  std::vector<std::byte> bytes_;
  std::size_t body_bytes_ = 0;
  bool in_body_ = false;
  std::string_view error_;
};

}  // namespace headway::comm
