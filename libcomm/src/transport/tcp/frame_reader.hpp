// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "transport/tcp/frame.hpp"

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
  virtual void received(Tag tag) = 0;
  virtual void on_oob(std::string_view text) = 0;
};

/// Parses the frames of one peer and writes them to their destinations. It reads no socket itself: gather() returns the
/// memory to read into, advance() takes the number of bytes read.
///
/// Bytes that arrive together with a frame header pass through a stage of 16 KiB, so that one system call takes many
/// small frames. The rest of a payload is read directly into its destination. Nothing is written before the frame was
/// checked, nor outside the receive buffer and the windows.
///
/// Example: frames of 64, 64 and 1,048,608 bytes arrive in one call that reads 16 KiB into the stage and nothing
/// elsewhere. The first two are complete: both are copied and reported. The third is begun: its first 16,224 staged
/// bytes go to their destination, and from then on gather() returns the destination itself.
class FrameReader {
 public:
  static constexpr std::size_t kMaxPieces = 3;
  using Pieces = std::array<iovec, kMaxPieces>;

  explicit FrameReader(std::span<std::byte> receive_buffer) : receive_buffer_(receive_buffer), stage_(kStageBytes) {}

  void open_window(WindowId window, std::span<std::byte> memory) { windows_[window] = memory; }
  /// Nothing is written to the window afterwards, not even the rest of a frame that has partly arrived.
  void close_window(WindowId window);

  /// Fills `pieces` with the memory for the next bytes. @returns the number of pieces.
  [[nodiscard]] std::size_t gather(Pieces& pieces);
  /// Processes `num_bytes` that were read into the pieces of gather(). @returns false from the first bad frame on.
  [[nodiscard]] bool advance(std::size_t num_bytes, FrameHandler& handler);

  /// Describes the bad frame; empty if there was none.
  [[nodiscard]] std::string_view error() const { return error_; }
  /// True if the end of the stream here would cut a frame.
  [[nodiscard]] bool is_inside_frame() const { return stage_begin_ != stage_end_ || in_body_; }
  /// Number of frames dropped because their window was not, or no longer, open.
  [[nodiscard]] std::uint64_t num_dropped() const { return num_dropped_; }

 private:
  static constexpr std::size_t kStageBytes = 16 * 1024;

  /// Contiguous memory for the body from byte `position` on: a body has a header and a payload, 64 bytes apart.
  [[nodiscard]] std::span<std::byte> next_piece(std::uint64_t position) const;
  /// Parses all complete frames in the stage, and moves the rest to its start.
  void process_stage(FrameHandler& handler);
  /// Copies body bytes from the stage to their destination.
  void take_body();
  /// Reads and checks a frame header from the stage. Sets error_ if it is bad.
  void start_frame();
  /// Finds the destination of the body, or decides to drop it.
  void choose_destination();
  /// Reports the complete frame to `handler`.
  void finish_frame(FrameHandler& handler);

  std::span<std::byte> receive_buffer_;
  std::unordered_map<WindowId, std::span<std::byte>> windows_;

  std::vector<std::byte> stage_;
  std::size_t stage_begin_ = 0, stage_end_ = 0;  ///< Range of unparsed bytes in stage_.

  FrameHeader frame_;  ///< Frame whose body is being read.
  bool in_body_ = false;
  bool drops_body_ = false;                       ///< The frame's window is not open: its body is read and discarded.
  std::uint64_t body_done_ = 0, body_bytes_ = 0;  ///< Bytes of the put's header and payload together.
  std::byte* header_destination_ = nullptr;
  std::byte* payload_destination_ = nullptr;
  std::array<std::byte, kMaxOobBytes> oob_;
  std::uint64_t num_dropped_ = 0;
  std::string_view error_;
};

}  // namespace headway::comm::tcp
