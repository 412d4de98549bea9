// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/comm/endpoint.hpp"
#include "headway/comm/group_options.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

namespace headway::comm {

/// How the payload of a message travels.
enum class MessageKind : std::uint8_t {
  kEager,  ///< The payload follows the header.
  kRts,    ///< The payload stays in the sender's memory until the receiver asks for it (rendezvous_protocol.hpp).
  kRevocableRts,  ///< kRts that the sender may revoke; it then sends the payload (all_to_all_channel.hpp).
  kBlockingRts,   ///< kRts of a sender that polls until the payload is taken.
};

/// The call that a message belongs to. If ranks disagree, the error names both calls.
enum class Verb : std::uint8_t { kAllToAll, kSend, kBroadcast, kGather, kScatter, kAllGather, kBarrier };

/// Header in front of every message. The receiver checks it before it uses the payload.
///
/// Format: 48 bytes in the order below, without padding, in the byte order of the host:
///   bytes 0-7 size_bytes, 8-11 operation, 12-13 data_type, 14 kind, 15 verb, 16-19 busy_before_wait_us,
///   20-23 busy_after_wait_us, 24-31 match, 32-39 source_address, 40-43 consumed, 44-47 transfer.
/// An eager all-to-all sends only the first 16 bytes, or 24 with busy times. The receiver always reads 48; the rest is
/// left over from an earlier message and is not used.
struct MessageHeader {
  std::uint64_t size_bytes = 0;  ///< Size of the whole payload.
  std::uint32_t operation = 0;   ///< Operation number, low 32 bits.
  std::uint16_t data_type = 0;   ///< The caller's code of the element type; only compared.
  MessageKind kind = MessageKind::kEager;
  Verb verb = Verb::kAllToAll;
  std::uint32_t busy_before_wait_us = 0;  ///< Busy times of the sender (lag_advisor.hpp), if the group has adapt_lag.
  std::uint32_t busy_after_wait_us = 0;
  std::uint64_t match = 0;           ///< Point-to-point messages: value that the receiver matches.
  std::uint64_t source_address = 0;  ///< RTS: address of the payload in the sender's process.
  std::uint32_t consumed =
      0;  ///< Point-to-point messages: number of the receiver's messages that the sender has consumed.
  std::uint32_t transfer = 0;  ///< RTS: number of the rendezvous, counted by the sender per peer.

  /// Sizes of a short header, without and with busy times.
  static constexpr std::size_t kShortBytes = 16, kTimedBytes = 24;
  /// Bytes to send. `is_timed`: the busy times are valid.
  [[nodiscard]] std::span<std::byte const> bytes(bool is_timed) const {
    bool const is_short = verb == Verb::kAllToAll && kind == MessageKind::kEager;
    std::size_t const short_bytes = is_timed ? kTimedBytes : kShortBytes;
    return std::as_bytes(std::span(this, 1)).first(is_short ? short_bytes : sizeof(MessageHeader));
  }
  /// Copies a header from a slot.
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

/// Tag channels. All-to-all channels have numbers 0 to kMaxAllToAllChannels - 1.
inline constexpr int kMaxAllToAllChannels = 64;
inline constexpr std::uint8_t kP2PChannel = 64;
inline constexpr std::uint8_t kP2PConsumedChannel = 65;  ///< `operation`: number of consumed messages mod 2^16.
/// `operation`: transfer number; the receiver opened a window on its output.
inline constexpr std::uint8_t kRendezvousReadyChannel = 66;
/// `operation`: transfer number; `fragment`: number of granted fragments mod 256.
inline constexpr std::uint8_t kRendezvousGrantChannel = 67;
/// `operation`: transfer number; the receiver has the payload.
inline constexpr std::uint8_t kRendezvousDoneChannel = 68;
/// `operation`: transfer number; `fragment`: fragment number mod 256.
inline constexpr std::uint8_t kRendezvousDataChannel = 69;

/// Name of the call for error messages and flight records.
char const* verb_name(Verb verb);

/// Name of an element type for error messages: `name(type)`, or the number if there is no such function.
std::string text_of(DataType type, DataTypeName name);

}  // namespace headway::comm
