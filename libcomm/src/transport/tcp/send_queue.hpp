// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "transport/tcp/frame.hpp"

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace headway::comm::tcp {

/// FIFO of frames to one peer that the kernel has not taken yet. Payloads are referenced, not copied. It allocates only
/// while it grows.
class SendQueue {
 public:
  static constexpr std::size_t kMaxPuts = 4096;

  [[nodiscard]] bool empty() const { return count_ == 0; }
  [[nodiscard]] bool is_full() const { return num_puts_ >= kMaxPuts; }

  void push_put(Destination const& destination, std::span<std::byte const> header, std::span<std::byte const> payload,
                Tag tag);
  void push_oob(std::string_view text);

  /// Fills `pieces` with the next bytes to send. @returns the number of pieces.
  [[nodiscard]] std::size_t gather(std::span<iovec> pieces) const;
  /// Removes the first `num_bytes`, which were sent. @returns the number of puts completed by that.
  std::uint64_t advance(std::size_t num_bytes);
  /// Drops everything. @returns the number of puts dropped.
  std::uint64_t clear();
  /// From now on no payload of the caller is read. Puts of which no byte was sent are dropped; the rest of a partly
  /// sent one is copied.
  /// @returns the number of puts dropped.
  std::uint64_t let_go_of_payloads();

 private:
  /// One frame. `head` holds the frame header and the put's header.
  struct Entry {
    std::array<std::byte, sizeof(FrameHeader) + kMaxHeaderBytes> head;
    std::size_t head_bytes = 0;
    std::span<std::byte const> payload;
    std::vector<std::byte> own_bytes;  ///< Text of an OOB message, or the copy of a payload.
    bool is_put = false;

    [[nodiscard]] std::size_t total_bytes() const { return head_bytes + payload.size(); }
  };

  [[nodiscard]] Entry const& at(std::size_t index) const { return ring_[(first_ + index) % ring_.size()]; }
  Entry& push(FrameHeader const& frame, std::span<std::byte const> header);
  void grow();
  /// Removes the first entry. @returns whether it was a put.
  bool pop();

  std::vector<Entry> ring_;
  std::size_t first_ = 0, count_ = 0, num_puts_ = 0;
  std::size_t front_sent_ = 0;  ///< Bytes of the first entry that were sent.
};

}  // namespace headway::comm::tcp
