#pragma once

#include "headway/comm/endpoint.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

namespace headway::comm::tcp {

enum class FrameKind : std::uint8_t {
  kPut = 1,     ///< Header and payload go to their place, then the tag is visible.
  kNotice = 2,  ///< The payload is a text.
};

inline constexpr std::uint32_t kFrameMagic = 0x31465748;  // "HWF1"

/// What precedes every put and notice on a connection. In the byte order of both hosts, which the handshake compared.
struct FrameHeader {
  std::uint32_t magic = kFrameMagic;
  FrameKind kind = FrameKind::kPut;
  std::uint8_t header_bytes = 0;  ///< Of the put's header, which follows; then the payload.
  std::uint16_t reserved = 0;
  std::uint32_t tag = 0;
  std::uint32_t segment = 0;
  std::uint64_t offset = 0;
  std::uint64_t payload_bytes = 0;
};
static_assert(sizeof(FrameHeader) == 32 && std::is_trivially_copyable_v<FrameHeader>);
static_assert(std::has_unique_object_representations_v<FrameHeader>, "no padding goes over the wire");

/// Whether a put's header and payload lie within a segment. The landing segment takes offsets that are multiples of 64
/// and keeps kHeaderBytes before the payload; an exposed one takes the payload alone, anywhere.
[[nodiscard]] bool fits_segment(std::uint64_t segment_bytes, SegmentId segment, std::uint64_t offset,
                                std::size_t header_bytes, std::uint64_t payload_bytes);

/// What is wrong with a frame that came from a peer, whatever its segment; empty if nothing.
[[nodiscard]] std::string_view frame_error(FrameHeader const& frame);

}  // namespace headway::comm::tcp
