#pragma once

#include "file_descriptor.hpp"
#include "headway/comm/endpoint.hpp"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace headway::comm::shm {

inline constexpr std::size_t kCells = 64;       ///< Notifications in flight per pair of ranks.
inline constexpr std::size_t kCellBytes = 48;   ///< Room for a header and, if it fits behind, a payload.
inline constexpr std::size_t kOffsetUnit = 64;  ///< Destinations in the landing segment are multiples of this.

/// One notification: one cache line, so that the receiver, which looks at it all the time, takes nothing from the
/// sender but what is needed. The header travels inside, and so does a small payload, so that a small message costs no
/// further line. `word` is stored last: count + 1 in the upper half, the tag in the lower.
struct alignas(64) Cell {
  std::atomic<std::uint64_t> word;
  std::uint32_t offset_units;   ///< Destination in the landing segment.
  std::uint16_t payload_bytes;  ///< Of an inline payload; otherwise 0 and the payload is in place already.
  std::uint16_t header_bytes;
  std::array<std::byte, kCellBytes> bytes;
};
static_assert(sizeof(Cell) == 64 && std::atomic<std::uint64_t>::is_always_lock_free);

/// What one source writes to and reads from at a receiver.
struct Inbox {
  std::array<Cell, kCells> cells;                 ///< Written by the source; message i takes cell i mod kCells.
  alignas(128) std::atomic<std::uint64_t> taken;  ///< Written by the receiver: notifications it has taken.
};

/// The start of each rank's memory file; an Inbox per source follows, then the landing segment.
struct alignas(128) Control {
  std::atomic<std::uint32_t> armed;      ///< The rank may sleep: ring its doorbell after a put.
  std::atomic<std::uint32_t> retracted;  ///< What was read of the rank's user memory before this was seen is void.
};

enum class Pages { kSmall, kHuge };

/// Pages of a memory file in this process's address space.
class Mapping {
 public:
  Mapping() = default;
  /// Maps the pages that hold `num_bytes` from `offset` on; huge ones where the host grants them. @throws SystemError.
  Mapping(FileDescriptor const& file, std::size_t offset, std::size_t num_bytes, Pages pages);
  Mapping(Mapping&& other) noexcept { *this = std::move(other); }
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  /// The byte at `offset` of the file.
  [[nodiscard]] std::byte* data() const { return base_ + skipped_bytes_; }

 private:
  std::byte* base_ = nullptr;
  std::size_t mapped_bytes_ = 0;
  std::size_t skipped_bytes_ = 0;  ///< From the start of the first page.
};

/// A range of a landing segment.
struct LandingRange {
  std::size_t offset = 0, bytes = 0;
};

/// A rank's memory file, mapped. It has no name: nothing is left behind however a process ends.
///
/// The owner maps all of it. A peer maps the start of the file and the part of the landing segment that it writes to:
/// the segments of all ranks together grow with the square of their number.
class Region {
 public:
  Region() = default;
  /// Makes this rank's own region for `size` ranks. @throws SystemError naming the size that could not be had.
  static Region create(int size, std::size_t landing_bytes);
  /// Maps a peer's region: of its landing segment of `landing_bytes`, `part`. @throws SystemError.
  static Region map(FileDescriptor fd, int size, std::size_t landing_bytes, LandingRange part);

  [[nodiscard]] int fd() const { return fd_.get(); }
  void close_fd() { fd_.reset(); }
  [[nodiscard]] Control& control() const { return *reinterpret_cast<Control*>(head_.data()); }
  [[nodiscard]] Inbox& inbox(int source) const {
    return reinterpret_cast<Inbox*>(head_.data() + sizeof(Control))[source];
  }
  /// The part of the landing segment that was asked for; of the own region, all of it.
  [[nodiscard]] std::span<std::byte> landing() const { return landing_; }

 private:
  void map_file(int size, std::size_t landing_bytes, LandingRange part);

  FileDescriptor fd_;
  Mapping head_, pages_;
  std::span<std::byte> landing_;  ///< In pages_.
};

}  // namespace headway::comm::shm
