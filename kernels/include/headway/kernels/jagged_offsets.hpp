// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/kernels/cuda_stream.hpp"
#include "headway/kernels/jagged_segments.hpp"

#include <cstdint>

namespace headway::kernels {

/// Lengths of items before and after a move. An item is the list of rows of one feature in one sample. The offsets of
/// both are computed together: one scan costs less than two.
///
/// Example: lengths before are 2 1 (3 rows), lengths after are 1 2 0. The offsets are 0 2 3 and 0 1 3 3.
struct MovedLengths {
  enum class LengthType : std::uint8_t { kInt32, kInt64 };

  LengthType type = LengthType::kInt64;
  std::int64_t num_before = 0, num_after = 0;
  std::int64_t num_rows = 0;     ///< Sum of the lengths before; if it is wrong, so are the offsets after.
  void const* before = nullptr;  ///< (num_before)
  void const* after = nullptr;   ///< (num_after)
  /// (num_before + 1 + num_after + 1): offsets before, then offsets after; each begins with 0.
  std::int64_t* offsets = nullptr;

  [[nodiscard]] HEADWAY_HOST_DEVICE std::int64_t num_offsets() const { return num_before + num_after + 2; }
};

/// Computes the offsets on the CPU.
void find_offsets(MovedLengths const& lengths);
/// Computes the offsets on a device with one scan; never waits on the host.
/// @param scratch find_offsets_scratch_bytes() bytes; in use until the stream has passed the call
void find_offsets_async(MovedLengths const& lengths, void* scratch, std::int64_t scratch_bytes, CudaStream stream);
[[nodiscard]] std::int64_t find_offsets_scratch_bytes(MovedLengths const& lengths);

/// Groups of equally many consecutive segments.
struct SegmentGroups {
  Segments segments{};
  std::int64_t num_groups = 0, segments_of_group = 0;  ///< Segments per group. The product is below 2^31.
  std::int64_t* num_rows = nullptr;                    ///< (num_groups): rows of each group, written.
};

/// Counts the rows of each group.
void count_rows(SegmentGroups const& groups);
void count_rows_async(SegmentGroups const& groups, CudaStream stream);

}  // namespace headway::kernels
