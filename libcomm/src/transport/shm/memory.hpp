// SPDX-License-Identifier: Apache-2.0

// Memory that ranks of a host share: notifications, control words, and receive buffers.
//
// False sharing decides the layout. A cell is written by the sender and read by the receiver; `taken` goes the other
// way. Each has cache lines of its own, and `taken` is 128 bytes away because processors prefetch lines in pairs.

#pragma once

#include "headway/base/file_descriptor.hpp"
#include "headway/comm/endpoint.hpp"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace headway::comm::shm {

inline constexpr std::size_t kCells = 64;       ///< Notifications in flight per pair of ranks.
inline constexpr std::size_t kCellBytes = 48;   ///< Bytes for a header and, if both fit, its payload.
inline constexpr std::size_t kOffsetUnit = 64;  ///< Offsets in the receive buffer are multiples of this.

/// One notification in one cache line, so that the polling receiver takes no other line from the sender. The header
/// always travels inside. A small payload does too, and then needs no further line. `word` is stored last, with release
/// order: count + 1 in the upper 32 bits, the tag in the lower.
struct alignas(64) Cell {
  std::atomic<std::uint64_t> word;
  /// Destination in the sender's part of the receive buffer, in units of kOffsetUnit bytes.
  std::uint32_t offset_units;
  std::uint16_t payload_bytes;  ///< Size of an inline payload; 0 if there is none or the payload is already in place.
  std::uint16_t header_bytes;
  std::array<std::byte, kCellBytes> bytes;
};
static_assert(sizeof(Cell) == 64 && std::atomic<std::uint64_t>::is_always_lock_free);

/// Notification ring from one source to one receiver, in the receiver's memory file.
struct Inbox {
  std::array<Cell, kCells> cells;                 ///< Written by the source. Message i uses cell i mod kCells.
  alignas(128) std::atomic<std::uint64_t> taken;  ///< Written by the receiver: number of notifications consumed.
};

/// Start of each rank's memory file. One Inbox per source follows, then the receive buffer.
struct alignas(128) Control {
  std::atomic<std::uint32_t> armed;  ///< Nonzero if the rank may sleep: ring its doorbell after a put.
  /// Nonzero after retract(): bytes of its user memory that peers read from then on are invalid.
  std::atomic<std::uint32_t> retracted;
};

enum class Pages { kSmall, kHuge };

/// Mapping of a range of a memory file into this process.
class Mapping {
 public:
  Mapping() = default;
  /// Maps the pages that contain `num_bytes` from `offset` on, as huge pages if the host grants them.
  /// @throws SystemError.
  Mapping(base::FileDescriptor const& file, std::size_t offset, std::size_t num_bytes, Pages pages);
  Mapping(Mapping&& other) noexcept { *this = std::move(other); }
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  /// The byte at `offset` of the file.
  [[nodiscard]] std::byte* data() const { return base_ + skipped_bytes_; }

 private:
  std::byte* base_ = nullptr;
  std::size_t mapped_bytes_ = 0;
  std::size_t skipped_bytes_ = 0;  ///< Bytes between the start of the first page and the range.
};

/// A range of a receive buffer.
struct ReceiveRange {
  std::size_t offset = 0, bytes = 0;
};

/// A rank's memory file (memfd), mapped. It has no name in the file system, so nothing remains however a process ends.
///
/// The owner maps all of it. A peer maps the start and its own part of the receive buffer only: full mappings of all
/// receive buffers would grow with the square of the number of ranks.
class Region {
 public:
  Region() = default;
  /// Creates this rank's region for `size` ranks. @throws SystemError naming the size that could not be allocated.
  static Region create(int size, std::size_t receive_buffer_bytes);
  /// Maps the start of a peer's region and the range `part` of its receive buffer of `receive_buffer_bytes`.
  /// @throws SystemError.
  static Region map(base::FileDescriptor fd, int size, std::size_t receive_buffer_bytes, ReceiveRange part);

  [[nodiscard]] int fd() const { return fd_.get(); }
  void close_fd() { fd_.reset(); }
  [[nodiscard]] Control& control() const { return *reinterpret_cast<Control*>(head_.data()); }
  [[nodiscard]] Inbox& inbox(int source) const {
    return reinterpret_cast<Inbox*>(head_.data() + sizeof(Control))[source];
  }
  /// The mapped part of the receive buffer; all of it for the own region.
  [[nodiscard]] std::span<std::byte> receive_buffer() const { return receive_buffer_; }

 private:
  void map_file(int size, std::size_t receive_buffer_bytes, ReceiveRange part);

  base::FileDescriptor fd_;
  Mapping head_, pages_;
  std::span<std::byte> receive_buffer_;  ///< Lies inside pages_.
};

}  // namespace headway::comm::shm
