// SPDX-License-Identifier: Apache-2.0

// Parser of the frames of one peer; frame_reader.hpp has the idea.
//
// Example: readv() returned 100 bytes into the stage: a frame of 32 + 24 + 8 bytes and 36 bytes of the next one. The
// first is copied to its destination and reported. The frame header (32 bytes) of the second is checked, its
// destination is chosen, and the 4 bytes behind it are copied there. The next gather() points at the rest of its body,
// then at the stage.

#include "transport/tcp/frame_reader.hpp"

#include <algorithm>
#include <cassert>
#include <cstring>

namespace headway::comm::tcp {

void FrameReader::close_window(WindowId window) {
  windows_.erase(window);
  if (in_body_ && frame_.kind == FrameKind::kPut && frame_.window == window) drops_body_ = true;
}

std::size_t FrameReader::gather(Pieces& pieces) {
  std::size_t count = 0;
  if (in_body_ && !drops_body_) {
    assert(stage_begin_ == stage_end_ && "a body is taken from the stage first");
    for (std::uint64_t position = body_done_; position < body_bytes_;) {
      auto const piece = next_piece(position);
      pieces[count++] = {piece.data(), piece.size()};
      position += piece.size();
    }
  }
  pieces[count++] = {stage_.data() + stage_end_, stage_.size() - stage_end_};
  return count;
}

std::span<std::byte> FrameReader::next_piece(std::uint64_t position) const {
  if (position < frame_.header_bytes) return {header_destination_ + position, frame_.header_bytes - position};
  return {payload_destination_ + (position - frame_.header_bytes), body_bytes_ - position};
}

bool FrameReader::advance(std::size_t num_bytes, FrameHandler& handler) {
  if (!error_.empty()) return false;
  if (in_body_ && !drops_body_) {
    std::uint64_t const direct = std::min<std::uint64_t>(num_bytes, body_bytes_ - body_done_);
    body_done_ += direct;
    num_bytes -= direct;
  }
  stage_end_ += num_bytes;
  process_stage(handler);
  return error_.empty();
}

void FrameReader::process_stage(FrameHandler& handler) {
  for (;;) {
    if (in_body_) {
      take_body();
      if (body_done_ < body_bytes_) break;
      finish_frame(handler);
    } else {
      if (stage_end_ - stage_begin_ < sizeof(FrameHeader)) break;
      start_frame();
      if (!error_.empty()) return;
    }
  }
  // The remaining bytes are less than a frame header.
  std::memmove(stage_.data(), stage_.data() + stage_begin_, stage_end_ - stage_begin_);
  stage_end_ -= stage_begin_;
  stage_begin_ = 0;
}

void FrameReader::take_body() {
  while (body_done_ < body_bytes_ && stage_begin_ < stage_end_) {
    std::size_t const staged = stage_end_ - stage_begin_;
    std::size_t taken = std::min<std::uint64_t>(staged, body_bytes_ - body_done_);
    if (!drops_body_) {
      auto const piece = next_piece(body_done_);
      taken = std::min(taken, piece.size());
      std::memcpy(piece.data(), stage_.data() + stage_begin_, taken);
    }
    stage_begin_ += taken;
    body_done_ += taken;
  }
}

void FrameReader::start_frame() {
  std::memcpy(&frame_, stage_.data() + stage_begin_, sizeof(frame_));
  error_ = frame_error(frame_);
  if (!error_.empty()) return;
  stage_begin_ += sizeof(frame_);
  drops_body_ = false;
  choose_destination();
  if (!error_.empty()) return;
  in_body_ = true;
  body_done_ = 0;
  body_bytes_ = frame_.header_bytes + frame_.payload_bytes;
}

void FrameReader::choose_destination() {
  if (frame_.kind == FrameKind::kOob) {
    payload_destination_ = oob_.data();
    return;
  }
  std::span<std::byte> window = receive_buffer_;
  if (frame_.window != kReceiveBuffer) {
    auto const found = windows_.find(frame_.window);
    // The peer may not know yet that the window was closed.
    if (found == windows_.end()) {
      drops_body_ = true;
      return;
    }
    window = found->second;
  }
  if (!fits_window(window.size(), frame_.window, frame_.offset, frame_.header_bytes, frame_.payload_bytes)) {
    error_ = "a frame that leaves its window";
    return;
  }
  header_destination_ = window.data() + frame_.offset;
  payload_destination_ = header_destination_;
  if (frame_.window == kReceiveBuffer && frame_.payload_bytes > 0) payload_destination_ += kHeaderBytes;
}

void FrameReader::finish_frame(FrameHandler& handler) {
  in_body_ = false;
  if (frame_.kind == FrameKind::kOob) {
    handler.on_oob({reinterpret_cast<char const*>(oob_.data()), static_cast<std::size_t>(frame_.payload_bytes)});
  } else if (drops_body_) {
    ++num_dropped_;
  } else {
    handler.received(Tag::unpack(frame_.tag));
  }
}

}  // namespace headway::comm::tcp
