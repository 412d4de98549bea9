// SPDX-License-Identifier: Apache-2.0

// Messages of the bootstrap on a byte stream. The socket is later used by the transports, so the reader must never
// take a byte that belongs to them: it asks for no more than the rest of the present message.

#include "bootstrap/message.hpp"

#include "bootstrap/bytes.hpp"
#include "headway/comm/status.hpp"

namespace headway::comm {
namespace {

constexpr std::uint32_t kMagic = 0x59574448;  // "HDWY"

}  // namespace

std::vector<std::byte> encode_message(BootstrapMessageKind kind, std::span<std::byte const> body) {
  expects(body.size() <= kMaxMemberMessageBody, "a bootstrap message is too long: is the group's name very long?");
  return ByteWriter()
      .integer(kMagic)
      .integer(static_cast<std::uint32_t>(kind))
      .integer(static_cast<std::uint32_t>(body.size()))
      .raw(body)
      .take();
}

std::size_t MessageReader::wanted() const {
  if (!error_.empty()) return 0;
  // Until the prefix is known, only as many bytes as every message has at least.
  return (in_body_ ? kMessagePrefixBytes + body_bytes_ : sure_bytes_) - bytes_.size();
}

void MessageReader::feed(std::span<std::byte const> bytes) {
  expects(bytes.size() <= wanted(), "more bytes than the message has");
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  if (!in_body_ && bytes_.size() >= kMessagePrefixBytes) parse_prefix();
}

void MessageReader::parse_prefix() {
  ByteReader reader(bytes_);
  std::uint32_t const magic = reader.integer();
  std::uint32_t const kind = reader.integer();
  body_bytes_ = reader.integer();
  if (magic != kMagic) {
    error_ = "it does not speak Headway's protocol";
  } else if (kind < static_cast<std::uint32_t>(BootstrapMessageKind::kHello) ||
             kind > static_cast<std::uint32_t>(BootstrapMessageKind::kStoreValue)) {
    error_ = "it sent a message of unknown kind";
  } else if (body_bytes_ > max_body_) {
    error_ = "it sent a message that is too long";
  } else {
    in_body_ = true;
    if (bytes_.size() > kMessagePrefixBytes + body_bytes_) error_ = "it sent more than it was asked for";
  }
}

std::optional<Message> MessageReader::take() {
  if (!in_body_ || wanted() != 0) return std::nullopt;
  Message message{.kind = static_cast<BootstrapMessageKind>(std::to_integer<std::uint8_t>(bytes_[4])),
                  .body = {bytes_.begin() + kMessagePrefixBytes, bytes_.end()}};
  *this = MessageReader(max_body_, sure_bytes_);
  return message;
}

}  // namespace headway::comm
