// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace headway::comm {

enum class BootstrapMessageKind : std::uint8_t {
  kHello = 1,          ///< Sender, receiver, a nonce, and the fields that must agree.
  kProof = 2,          ///< HMAC that proves knowledge of the secret.
  kRefusal = 3,        ///< The sender rejects the connection, with the reason.
  kReady = 4,          ///< The sender is connected with all ranks.
  kFailure = 5,        ///< The bootstrap failed: the first failing rank and the reason.
  kRankAddress = 6,    ///< To rank 0: the sender's address.
  kRankAddresses = 7,  ///< From rank 0: the addresses of all ranks.
  kStoreValue = 8      ///< A key and its value (SocketStore).
};

/// One bootstrap message: 4 bytes magic, 4 bytes kind, 4 bytes body length, body. All little-endian.
struct Message {
  BootstrapMessageKind kind{};
  std::vector<std::byte> body;
};

inline constexpr std::size_t kMessagePrefixBytes = 12;
/// Longest body that is accepted from an unauthenticated process.
inline constexpr std::size_t kMaxMessageBody = 16 * 1024;
/// Longest body between connected ranks: the addresses of all ranks, about 400 bytes each.
inline constexpr std::size_t kMaxMemberMessageBody = 64 * 1024 * 1024;

/// @throws UsageError if the body is longer than kMaxMemberMessageBody.
[[nodiscard]] std::vector<std::byte> encode_message(BootstrapMessageKind kind, std::span<std::byte const> body);

/// Assembles messages from a byte stream. It never asks for a byte beyond the current message.
class MessageReader {
 public:
  /// `sure_bytes`: number of bytes that may be requested at once. The sender must send either one message of at least
  /// this many bytes or a shorter one, and then wait for the answer.
  explicit MessageReader(std::size_t max_body = kMaxMessageBody, std::size_t sure_bytes = kMessagePrefixBytes)
      : max_body_(max_body), sure_bytes_(sure_bytes) {}

  /// Number of bytes that may be read next; 0 once a message is complete or the stream is malformed.
  [[nodiscard]] std::size_t wanted() const;
  /// Processes at most wanted() bytes.
  void feed(std::span<std::byte const> bytes);
  /// Returns the message if it is complete, and starts the next one.
  [[nodiscard]] std::optional<Message> take();
  /// Reason why the stream is malformed; empty if it is not.
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
