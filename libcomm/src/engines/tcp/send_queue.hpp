#pragma once

#include "engines/tcp/frame.hpp"

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace headway::comm::tcp {

/// Frames to one peer that the kernel has not taken yet, in order. Payloads stay where they are; no allocation once the
/// queue has grown.
class SendQueue {
 public:
  static constexpr std::size_t kMaxPuts = 4096;

  [[nodiscard]] bool empty() const { return count_ == 0; }
  [[nodiscard]] bool is_full() const { return num_puts_ >= kMaxPuts; }

  void push_put(Destination const& destination, std::span<std::byte const> header, std::span<std::byte const> payload,
                Tag tag);
  void push_notice(std::string_view text);

  /// Fills `pieces` with what goes next. @returns how many.
  [[nodiscard]] std::size_t gather(std::span<iovec> pieces) const;
  /// Takes note that the first `num_bytes` are gone. @returns how many puts are gone with them entirely.
  std::uint64_t advance(std::size_t num_bytes);
  /// Drops everything. @returns how many puts.
  std::uint64_t clear();
  /// Reads no payload of a put from here on: those of which nothing is gone are dropped, of one that is half gone the
  /// rest is copied. @returns how many were dropped.
  std::uint64_t let_go_of_payloads();

 private:
  struct Entry {
    std::array<std::byte, sizeof(FrameHeader) + kMaxHeaderBytes> head;
    std::size_t head_bytes = 0;
    std::span<std::byte const> payload;
    std::vector<std::byte> own_bytes;  ///< A notice's text, or what was copied of a payload.
    bool is_put = false;

    [[nodiscard]] std::size_t total_bytes() const { return head_bytes + payload.size(); }
  };

  [[nodiscard]] Entry const& at(std::size_t index) const { return ring_[(first_ + index) % ring_.size()]; }
  Entry& push(FrameHeader const& frame, std::span<std::byte const> header);
  void grow();
  bool pop();

  std::vector<Entry> ring_;
  std::size_t first_ = 0, count_ = 0, num_puts_ = 0;
  std::size_t front_sent_ = 0;  ///< Bytes of the first entry that are gone.
};

}  // namespace headway::comm::tcp
