// SPDX-License-Identifier: Apache-2.0

// Queue of frames to one peer. It is a ring of entries that are reused, so a steady stream of puts allocates nothing.
//
// Example: entries of 64 and 1,056 bytes are queued and the kernel took 100 bytes. advance(100) removes the first
// entry (one put is flushed) and leaves front_sent_ = 36: gather() begins 36 bytes into the second one.

#include "transport/tcp/send_queue.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace headway::comm::tcp {

void SendQueue::push_put(Destination const& destination, std::span<std::byte const> header,
                         std::span<std::byte const> payload, Tag tag) {
  if (destination.window != kReceiveBuffer) header = {};
  Entry& entry = push({.kind = FrameKind::kPut,
                       .header_bytes = static_cast<std::uint8_t>(header.size()),
                       .tag = tag.packed(),
                       .window = destination.window,
                       .offset = destination.offset,
                       .payload_bytes = payload.size()},
                      header);
  entry.payload = payload;
  entry.is_put = true;
  ++num_puts_;
}

void SendQueue::push_oob(std::string_view text) {
  text = text.substr(0, kMaxOobBytes);
  auto const bytes = std::as_bytes(std::span(text));
  Entry& entry = push({.kind = FrameKind::kOob, .payload_bytes = text.size()}, {});
  entry.own_bytes.assign(bytes.begin(), bytes.end());
  entry.payload = entry.own_bytes;
  entry.is_put = false;
}

SendQueue::Entry& SendQueue::push(FrameHeader const& frame, std::span<std::byte const> header) {
  if (count_ == ring_.size()) grow();
  Entry& entry = ring_[(first_ + count_++) % ring_.size()];
  std::memcpy(entry.head.data(), &frame, sizeof(frame));
  if (!header.empty()) std::memcpy(entry.head.data() + sizeof(frame), header.data(), header.size());
  entry.head_bytes = sizeof(frame) + header.size();
  return entry;
}

// A moved vector keeps its buffer, so payload spans of OOB messages stay valid.
void SendQueue::grow() {
  std::vector<Entry> larger(std::max<std::size_t>(16, 2 * ring_.size()));
  for (std::size_t i = 0; i < count_; ++i) larger[i] = std::move(ring_[(first_ + i) % ring_.size()]);
  ring_ = std::move(larger);
  first_ = 0;
}

std::size_t SendQueue::gather(std::span<iovec> pieces) const {
  std::size_t num_pieces = 0;
  std::size_t skipped = front_sent_;
  auto const add = [&](std::span<std::byte const> bytes) {
    std::size_t const gone = std::min(skipped, bytes.size());
    skipped -= gone;
    if (gone == bytes.size()) return;
    // The kernel only reads through an iovec that is sent, so the const_cast is safe.
    pieces[num_pieces++] = {const_cast<std::byte*>(bytes.data()) + gone, bytes.size() - gone};
  };
  for (std::size_t i = 0; i < count_ && num_pieces + 2 <= pieces.size(); ++i) {
    Entry const& entry = at(i);
    add(std::span(entry.head).first(entry.head_bytes));
    add(entry.payload);
  }
  return num_pieces;
}

std::uint64_t SendQueue::advance(std::size_t num_bytes) {
  std::uint64_t num_puts_gone = 0;
  front_sent_ += num_bytes;
  while (count_ > 0 && front_sent_ >= at(0).total_bytes()) {
    front_sent_ -= at(0).total_bytes();
    num_puts_gone += pop() ? 1 : 0;
  }
  return num_puts_gone;
}

std::uint64_t SendQueue::clear() {
  std::uint64_t num_puts_gone = 0;
  while (count_ > 0) num_puts_gone += pop() ? 1 : 0;
  front_sent_ = 0;
  return num_puts_gone;
}

std::uint64_t SendQueue::let_go_of_payloads() {
  // Rebuilt instead of changed in place: entries that stay move up, in order, and none of them refers to the caller.
  SendQueue kept;
  kept.front_sent_ = front_sent_;
  std::uint64_t num_puts_dropped = 0;
  for (std::size_t i = 0; i < count_; ++i) {
    Entry& entry = ring_[(first_ + i) % ring_.size()];
    bool const is_half_gone = i == 0 && front_sent_ > 0;
    if (entry.is_put && !is_half_gone) {
      ++num_puts_dropped;
      continue;
    }
    if (entry.is_put) {
      entry.own_bytes.assign(entry.payload.begin(), entry.payload.end());
      entry.payload = entry.own_bytes;
      ++kept.num_puts_;
    }
    if (kept.count_ == kept.ring_.size()) kept.grow();
    kept.ring_[kept.count_++] = std::move(entry);
  }
  *this = std::move(kept);
  return num_puts_dropped;
}

bool SendQueue::pop() {
  Entry& entry = ring_[first_];
  first_ = (first_ + 1) % ring_.size();
  --count_;
  entry.own_bytes.clear();
  entry.payload = {};
  if (entry.is_put) --num_puts_;
  return entry.is_put;
}

}  // namespace headway::comm::tcp
