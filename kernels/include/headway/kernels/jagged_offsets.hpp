#pragma once

#include "headway/kernels/cuda_stream.hpp"
#include "headway/kernels/jagged_segments.hpp"

#include <cstdint>

namespace headway::kernels {

/// Lengths of items before and after they are moved, whose offsets are found together: one scan costs what two do.
///
/// Example: lengths 2 1 of 3 rows and 1 2 0 have the offsets 0 2 3 and 0 1 3 3.
struct MovedLengths {
  enum class LengthType : std::uint8_t { kInt32, kInt64 };

  LengthType type = LengthType::kInt64;
  std::int64_t num_before = 0, num_after = 0;
  std::int64_t num_rows = 0;        ///< What lengths before add up to; offsets after are wrong if they do not.
  void const* before = nullptr;     ///< (num_before)
  void const* after = nullptr;      ///< (num_after)
  std::int64_t* offsets = nullptr;  ///< (num_before + 1 + num_after + 1): from 0 those before, from 0 those after.

  [[nodiscard]] HEADWAY_HOST_DEVICE std::int64_t num_offsets() const { return num_before + num_after + 2; }
};

void find_offsets(MovedLengths const& lengths);
/// On a device, one scan; waits for nothing.
/// @param scratch of so many bytes as scratch_bytes() says; needed until the stream is through
void find_offsets_async(MovedLengths const& lengths, void* scratch, std::int64_t scratch_bytes, CudaStream stream);
[[nodiscard]] std::int64_t find_offsets_scratch_bytes(MovedLengths const& lengths);

/// Segments in groups of equally many neighbours.
struct SegmentGroups {
  Segments segments{};
  std::int64_t num_groups = 0, segments_of_group = 0;  ///< Their product below 2^31.
  std::int64_t* num_rows = nullptr;                    ///< (num_groups): the rows of each.
};

void count_rows(SegmentGroups const& groups);
void count_rows_async(SegmentGroups const& groups, CudaStream stream);

}  // namespace headway::kernels
