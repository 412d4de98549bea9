#pragma once

#include "engines/tcp/frame.hpp"

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace headway::comm::tcp {

/// Receives the frames that a FrameReader completes. May call anything except the reader's advance().
class FrameHandler {
 public:
  virtual ~FrameHandler() = default;
  virtual void landed(Tag tag) = 0;
  virtual void notice(std::string_view text) = 0;
};

/// Parses the frames of one peer and puts them in place. It reads no socket itself: gather() says where to read to,
/// advance() how much was read.
///
/// Bytes that arrive together with a frame header pass through a stage of 16 KiB, so that one system call takes many
/// small frames. The rest of a payload is read directly into its place. Nothing is written before the frame was
/// checked, nor outside the landing segment and the exposed segments.
class FrameReader {
 public:
  static constexpr std::size_t kMaxPieces = 3;
  using Pieces = std::array<iovec, kMaxPieces>;

  explicit FrameReader(std::span<std::byte> landing) : landing_(landing), stage_(kStageBytes) {}

  void expose(SegmentId segment, std::span<std::byte> memory) { exposed_[segment] = memory; }
  /// Nothing is written to the segment afterwards, not even the rest of a frame that has partly arrived.
  void withdraw(SegmentId segment);

  /// Fills `pieces` with the memory for the next bytes. @returns the number of pieces.
  [[nodiscard]] std::size_t gather(Pieces& pieces);
  /// Processes `num_bytes` that were read into the pieces of gather(). @returns false from the first bad frame on.
  [[nodiscard]] bool advance(std::size_t num_bytes, FrameHandler& handler);

  /// Describes the bad frame; empty if there was none.
  [[nodiscard]] std::string_view error() const { return error_; }
  /// True if the end of the stream here would cut a frame.
  [[nodiscard]] bool is_inside_frame() const { return stage_begin_ != stage_end_ || in_body_; }
  /// Number of frames dropped because their segment was not, or no longer, exposed.
  [[nodiscard]] std::uint64_t num_dropped() const { return num_dropped_; }

 private:
  static constexpr std::size_t kStageBytes = 16 * 1024;

  /// Contiguous memory for the body from byte `position` on: a body has a header and a payload, 64 bytes apart.
  [[nodiscard]] std::span<std::byte> next_piece(std::uint64_t position) const;
  /// Parses all complete frames in the stage, and moves the rest to its start.
  void process_stage(FrameHandler& handler);
  /// Copies body bytes from the stage to their place.
  void take_body();
  /// Reads and checks a frame header from the stage. Sets error_ if it is bad.
  void start_frame();
  /// Finds the destination of the body, or decides to drop it.
  void choose_place();
  /// Reports the complete frame to `handler`.
  void finish_frame(FrameHandler& handler);

  std::span<std::byte> landing_;
  std::unordered_map<SegmentId, std::span<std::byte>> exposed_;

  std::vector<std::byte> stage_;
  std::size_t stage_begin_ = 0, stage_end_ = 0;  ///< Range of unparsed bytes in stage_.

  FrameHeader frame_;  ///< Frame whose body is being read.
  bool in_body_ = false;
  bool drops_body_ = false;  ///< The frame's segment is not exposed: its body is read and discarded.
  std::uint64_t body_done_ = 0, body_bytes_ = 0;  ///< Bytes of the put's header and payload together.
  std::byte* header_place_ = nullptr;
  std::byte* payload_place_ = nullptr;
  std::array<std::byte, kMaxNoticeBytes> notice_;
  std::uint64_t num_dropped_ = 0;
  std::string_view error_;
};

}  // namespace headway::comm::tcp
