#include "engines/tcp/frame.hpp"

namespace headway::comm::tcp {

bool fits_segment(std::uint64_t segment_bytes, SegmentId segment, std::uint64_t offset, std::size_t header_bytes,
                  std::uint64_t payload_bytes) {
  if (offset > segment_bytes) return false;
  std::uint64_t const room = segment_bytes - offset;
  if (segment != kLandingSegment) return payload_bytes <= room;
  if (offset % kHeaderBytes != 0) return false;
  if (payload_bytes == 0) return header_bytes <= room;
  return room >= kHeaderBytes && payload_bytes <= room - kHeaderBytes;
}

std::string_view frame_error(FrameHeader const& frame) {
  if (frame.magic != kFrameMagic) return "a frame without its mark";
  if (frame.reserved != 0) return "a frame with unknown flags";
  if (frame.header_bytes > kMaxHeaderBytes) return "a frame whose header is too long";
  if (frame.kind == FrameKind::kPut) {
    bool const has_room = frame.segment == kLandingSegment || frame.header_bytes == 0;
    return has_room ? "" : "a frame with a header for an exposed segment";
  }
  if (frame.kind != FrameKind::kNotice) return "a frame of unknown kind";
  if (frame.payload_bytes > kMaxNoticeBytes) return "a notice that is too long";
  bool const is_plain = frame.header_bytes == 0 && frame.tag == 0 && frame.segment == 0 && frame.offset == 0;
  return is_plain ? "" : "a notice with the fields of a put";
}

}  // namespace headway::comm::tcp
