// SPDX-License-Identifier: Apache-2.0
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
  kPut = 1,  ///< Header and payload go to `offset` in `window`, then the tag is visible.
  kOob = 2,  ///< The payload is the OOB message's text.
};

inline constexpr std::uint32_t kFrameMagic = 0x31465748;  // "HWF1"

/// Precedes every put and OOB message on a connection. Fields are in host byte order; the handshake has checked that
/// both hosts use the same one.
struct FrameHeader {
  std::uint32_t magic = kFrameMagic;
  FrameKind kind = FrameKind::kPut;
  std::uint8_t header_bytes = 0;  ///< Size of the put's header, which follows. The payload comes after it.
  std::uint16_t reserved = 0;
  std::uint32_t tag = 0;     ///< Tag::packed().
  std::uint32_t window = 0;  ///< WindowId at the receiver.
  std::uint64_t offset = 0;  ///< In bytes, from the start of the window.
  std::uint64_t payload_bytes = 0;
};
static_assert(sizeof(FrameHeader) == 32 && std::is_trivially_copyable_v<FrameHeader>);
static_assert(std::has_unique_object_representations_v<FrameHeader>, "no padding goes over the wire");

/// True if a put's header and payload lie within a window. The receive buffer needs offsets that are multiples of 64
/// and keeps kHeaderBytes before the payload. Any other window takes the payload alone, at any offset.
[[nodiscard]] bool fits_window(std::uint64_t window_bytes, WindowId window, std::uint64_t offset,
                               std::size_t header_bytes, std::uint64_t payload_bytes);

/// Describes the error in a frame from a peer, apart from its range in the window; empty if there is none.
[[nodiscard]] std::string_view frame_error(FrameHeader const& frame);

}  // namespace headway::comm::tcp
