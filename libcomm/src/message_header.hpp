#pragma once

#include "headway/comm/endpoint.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace headway::comm {

enum class MessageKind : std::uint8_t {
  kEager,           ///< The payload follows the header.
  kOffer,           ///< The payload stays with the sender until the receiver asks for it: see transfer.hpp.
  kRevocableOffer,  ///< The same, until the sender claims it back and sends it: see ring_channel.hpp.
  kAttendedOffer,   ///< As kOffer, and the sender looks at what arrives all the time until the payload is taken.
};

/// Which call a message belongs to; ranks that disagree get an error that names both.
enum class Verb : std::uint8_t { kAllToAll, kSend, kBroadcast, kGather, kScatter, kAllGather, kBarrier };

/// Travels in front of every message and is verified before its payload is used. The fields of an eager all-to-all
/// come first, so that such a message carries no more than those.
struct MessageHeader {
  std::uint64_t size_bytes = 0;  ///< Of the whole message.
  std::uint32_t operation = 0;   ///< Operation number, low 32 bits.
  std::uint16_t data_type = 0;
  MessageKind kind = MessageKind::kEager;
  Verb verb = Verb::kAllToAll;
  std::uint32_t busy_before_wait_us = 0;  ///< All-to-alls that adapt the lag: see lag_advisor.hpp.
  std::uint32_t busy_after_wait_us = 0;
  std::uint64_t match = 0;           ///< Pair messages: what the receiver matches.
  std::uint64_t source_address = 0;  ///< Offers: the payload's address in the sender's process.
  std::uint32_t consumed = 0;        ///< Pair messages: how many of the receiver's messages the sender has consumed.
  std::uint32_t transfer = 0;        ///< Offers: the sender's number for the transfer, counted per peer.

  static constexpr std::size_t kShortBytes = 16, kTimedBytes = 24;
  /// `is_timed`: the busy times have a meaning.
  [[nodiscard]] std::span<std::byte const> bytes(bool is_timed) const {
    bool const is_short = verb == Verb::kAllToAll && kind == MessageKind::kEager;
    std::size_t const short_bytes = is_timed ? kTimedBytes : kShortBytes;
    return std::as_bytes(std::span(this, 1)).first(is_short ? short_bytes : sizeof(MessageHeader));
  }
  static MessageHeader read(std::byte const* at) {
    MessageHeader header;
    std::memcpy(&header, at, sizeof header);
    return header;
  }
};
static_assert(offsetof(MessageHeader, busy_before_wait_us) == MessageHeader::kShortBytes);
static_assert(offsetof(MessageHeader, match) == MessageHeader::kTimedBytes);
static_assert(sizeof(MessageHeader) == 48 && sizeof(MessageHeader) <= kMaxHeaderBytes &&
              sizeof(MessageHeader) <= kHeaderBytes);

/// Tag channels: the all-to-all rings take 0 to kMaxRings - 1.
inline constexpr int kMaxRings = 64;
inline constexpr std::uint8_t kPairChannel = 64;
inline constexpr std::uint8_t kPairConsumedChannel = 65;   ///< operation: count of consumed messages modulo 2^16.
inline constexpr std::uint8_t kTransferReadyChannel = 66;  ///< operation: transfer; the receiver exposed its output.
inline constexpr std::uint8_t kTransferGrantChannel = 67;  ///< fragment: count of granted fragments modulo 256.
inline constexpr std::uint8_t kTransferDoneChannel = 68;   ///< The receiver has the payload.
inline constexpr std::uint8_t kTransferDataChannel = 69;   ///< operation: transfer, fragment: which.

char const* verb_name(Verb verb);

}  // namespace headway::comm
