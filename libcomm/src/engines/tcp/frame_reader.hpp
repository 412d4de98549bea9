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

/// Gets what a FrameReader finds. May call anything but the reader's advance().
class FrameHandler {
 public:
  virtual ~FrameHandler() = default;
  virtual void landed(Tag tag) = 0;
  virtual void notice(std::string_view text) = 0;
};

/// Puts the frames of one peer in place, without input of its own: gather() says where to read to, advance() how much
/// was read.
///
/// Bytes that come together with a frame's header pass through a small stage, so that one system call takes many small
/// frames; the rest of a payload is read straight into its place. Nothing is written before the frame was checked, nor
/// outside the landing segment and the exposed ones.
class FrameReader {
 public:
  static constexpr std::size_t kMaxPieces = 3;
  using Pieces = std::array<iovec, kMaxPieces>;

  explicit FrameReader(std::span<std::byte> landing) : landing_(landing), stage_(kStageBytes) {}

  void expose(SegmentId segment, std::span<std::byte> memory) { exposed_[segment] = memory; }
  /// Afterwards nothing is written there, not even the rest of a frame that is half there.
  void withdraw(SegmentId segment);

  /// Fills `pieces` with the memory for the next bytes. @returns how many pieces.
  [[nodiscard]] std::size_t gather(Pieces& pieces);
  /// Takes note that `num_bytes` were read into what gather() gave. @returns false, for good, after a bad frame.
  [[nodiscard]] bool advance(std::size_t num_bytes, FrameHandler& handler);

  /// What was wrong with the bad frame.
  [[nodiscard]] std::string_view error() const { return error_; }
  /// Whether the stream may not end here.
  [[nodiscard]] bool is_inside_frame() const { return stage_begin_ != stage_end_ || in_body_; }
  /// Frames for segments that are not exposed (any more).
  [[nodiscard]] std::uint64_t num_dropped() const { return num_dropped_; }

 private:
  static constexpr std::size_t kStageBytes = 16 * 1024;

  [[nodiscard]] std::span<std::byte> next_piece(std::uint64_t position) const;
  void process_stage(FrameHandler& handler);
  void take_body();
  void start_frame();
  void choose_place();
  void finish_frame(FrameHandler& handler);

  std::span<std::byte> landing_;
  std::unordered_map<SegmentId, std::span<std::byte>> exposed_;

  std::vector<std::byte> stage_;
  std::size_t stage_begin_ = 0, stage_end_ = 0;

  FrameHeader frame_;
  bool in_body_ = false;
  bool drops_body_ = false;
  std::uint64_t body_done_ = 0, body_bytes_ = 0;  ///< Of the put's header and payload together.
  std::byte* header_place_ = nullptr;
  std::byte* payload_place_ = nullptr;
  std::array<std::byte, kMaxNoticeBytes> notice_;
  std::uint64_t num_dropped_ = 0;
  std::string_view error_;
};

}  // namespace headway::comm::tcp
