// SPDX-License-Identifier: Apache-2.0

// Checks of frames. A peer is authenticated, but may have another version or a bug: nothing is written before its
// frame was found to be well-formed and inside its window.

#include "transport/tcp/frame.hpp"

namespace headway::comm::tcp {

bool fits_window(std::uint64_t window_bytes, WindowId window, std::uint64_t offset, std::size_t header_bytes,
                 std::uint64_t payload_bytes) {
  // Written as differences: offset + bytes could overflow and seem to fit.
  if (offset > window_bytes) return false;
  std::uint64_t const room = window_bytes - offset;
  if (window != kReceiveBuffer) return payload_bytes <= room;
  if (offset % kHeaderBytes != 0) return false;
  if (payload_bytes == 0) return header_bytes <= room;
  return room >= kHeaderBytes && payload_bytes <= room - kHeaderBytes;
}

std::string_view frame_error(FrameHeader const& frame) {
  if (frame.magic != kFrameMagic) return "a frame without its mark";
  if (frame.reserved != 0) return "a frame with unknown flags";
  if (frame.header_bytes > kMaxHeaderBytes) return "a frame whose header is too long";
  if (frame.kind == FrameKind::kPut) {
    bool const has_room = frame.window == kReceiveBuffer || frame.header_bytes == 0;
    return has_room ? "" : "a frame with a header for a window";
  }
  if (frame.kind != FrameKind::kOob) return "a frame of unknown kind";
  if (frame.payload_bytes > kMaxOobBytes) return "an OOB message that is too long";
  bool const is_plain = frame.header_bytes == 0 && frame.tag == 0 && frame.window == 0 && frame.offset == 0;
  return is_plain ? "" : "an OOB message with the fields of a put";
}

}  // namespace headway::comm::tcp
