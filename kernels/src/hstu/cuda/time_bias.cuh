#pragma once

#include "hstu/cuda/time_table.cuh"

#include <cstdint>

namespace headway::kernels {

/// Between which times some tokens are.
struct TimeRange {
  SplitTime least, most;
};

/// The first and the last bucket of time differences.
struct BucketRange {
  std::int32_t first, last;
};

/// Of all differences of times in one range from times in another.
[[nodiscard]] __device__ __forceinline__ BucketRange buckets_between(TimeTable const& table, TimeRange const& a,
                                                                     TimeRange const& b) {
  float const least = time_difference(a.least, b.most), most = time_difference(a.most, b.least);
  // A maximum of zeros may be -0, which is in no cell.
  float const apart[] = {fabsf(fmaxf(fmaxf(least, -most), 0.0F)), fabsf(fmaxf(-least, most))};
  std::int32_t buckets[2];
  table.find_buckets(apart, buckets);
  return {buckets[0], buckets[1]};
}

/// Of two neighbouring columns.
struct alignas(16) TimePair {
  SplitTime times[2];
};

/// The times of the two rows of a thread.
struct RowTimes {
  SplitTime times[2];
};

/// The times of the rows or columns of a block of scores, in shared memory, and the range of each kGroup of them: of
/// some rows and some columns all differences often lie in one bucket or two, so that they are looked up together.
template <int kTokens, int kGroup>
struct BlockTimes {
  static constexpr int kGroups = kTokens / kGroup;

  TimePair pairs[kTokens / 2];
  alignas(16) TimeRange ranges[kGroups];

  /// By all lanes of a warp, for others after a barrier.
  /// @param first time, of at least `num_times`; tokens behind those have the last one
  __device__ __forceinline__ void fill(std::int64_t const* first, std::int32_t num_times, std::int64_t base) {
    constexpr int kLanes = kGroup / 2;  // A lane has two tokens.
    static_assert(kTokens % (2 * kWarpThreads) == 0);
    auto const lane = static_cast<std::int32_t>(threadIdx.x % kWarpThreads);
#pragma unroll
    for (int pair = lane; pair < kTokens / 2; pair += kWarpThreads) {
      long long const times[] = {__ldg(first + min(2 * pair, num_times - 1)),
                                 __ldg(first + min(2 * pair + 1, num_times - 1))};
      pairs[pair] = {{{times[0], base}, {times[1], base}}};
      long long least = min(times[0], times[1]), most = max(times[0], times[1]);
      for (int bits = 1; bits < kLanes; bits *= 2) {
        least = min(least, __shfl_xor_sync(kAllLanes, least, bits));
        most = max(most, __shfl_xor_sync(kAllLanes, most, bits));
      }
      if (lane % kLanes == 0) ranges[pair / kLanes] = {{least, base}, {most, base}};
    }
    __syncwarp();
  }

  [[nodiscard]] __device__ __forceinline__ SplitTime time(std::int32_t token) const {
    return pairs[token / 2].times[token % 2];
  }
  /// @param row of a thread, the first of two (FragmentPlace)
  [[nodiscard]] __device__ __forceinline__ RowTimes times_of_rows(std::int32_t row) const {
    return {{time(row), time(row + 8)}};
  }
};

/// Of the pairs of 16 rows and 8 columns: `above` from the bound on, `below` else.
struct alignas(16) TimeStep {
  float bound, below, above, unused;
};

/// The time bias of a block of scores, in shared memory. Most groups of 16 rows and 8 columns lie in one bucket or in
/// two neighbouring ones, so that a comparison tells the bias. Chunks of kChunk columns that have others have steps of
/// 0, and their pairs are looked up one by one.
template <int kRows, int kColumns, int kChunk>
struct BlockTimeBias {
  static constexpr int kWarps = kRows / 16, kGroups = kColumns / 8;
  static constexpr int kChunkGroups = kChunk / 8, kChunks = kColumns / kChunk;
  static_assert(kGroups < kWarpThreads && kWarpThreads % kGroups == 0 && kWarps * kGroups % kWarpThreads == 0);

  TimeStep steps[kWarps][kGroups];
  /// By bits, the first groups of chunks: of those in which each group lies in one bucket, and of those looked up.
  std::uint32_t alike[kWarps], mixed[kWarps];

  /// By all lanes of a warp, for others after a barrier.
  __device__ __forceinline__ void fill(TimeTable const& table, BlockTimes<kRows, 16> const& rows,
                                       BlockTimes<kColumns, 8> const& columns) {
    auto const lane = static_cast<std::int32_t>(threadIdx.x % kWarpThreads);
    std::int32_t const group = lane % kGroups, first_lane = lane - group, chunk_lane = lane - lane % kChunkGroups;
    auto const is_in_chunk = [&](bool is_so) {
      return (__ballot_sync(kAllLanes, is_so) >> chunk_lane & ((1u << kChunkGroups) - 1)) != 0;
    };
    auto const first_groups = [&](bool is_so) -> std::uint32_t {
      return __ballot_sync(kAllLanes, is_so && lane == chunk_lane) >> first_lane & ((1u << kGroups) - 1);
    };
#pragma unroll
    for (int first_warp = 0; first_warp < kWarps; first_warp += kWarpThreads / kGroups) {
      std::int32_t const warp = first_warp + lane / kGroups;
      BucketRange const buckets = buckets_between(table, rows.ranges[warp], columns.ranges[group]);
      bool const is_mixed = is_in_chunk(buckets.last > buckets.first + 1);
      std::uint32_t const alike_groups = first_groups(!is_in_chunk(buckets.last > buckets.first));
      std::uint32_t const mixed_groups = first_groups(is_mixed);
      steps[warp][group] = {table.bound_above(buckets.first), is_mixed ? 0.0F : table.weight(buckets.first),
                            is_mixed ? 0.0F : table.weight(buckets.last), 0};
      if (group == 0) {
        alike[warp] = alike_groups;
        mixed[warp] = mixed_groups;
      }
    }
    __syncwarp();
  }
};

/// Adds the time bias to factor * score, in place. By all lanes of a warp.
/// @param warp of those that have the block's rows
/// @param column of the thread within a group, and the next
/// @param seen bits of the first groups of chunks of which some pair is seen
template <int kScores, class Bias, class Columns>
__device__ __forceinline__ void add_time_bias(float (&scores)[kScores], float factor, Bias const& bias,
                                              std::uint32_t warp, Columns const& columns, RowTimes const& rows,
                                              std::int32_t column, TimeTable const& table, std::uint32_t seen) {
  static_assert(kScores == 4 * Bias::kGroups);
  auto const find_apart = [&](int group, float* apart) {
    TimePair const pair = columns.pairs[4 * group + column / 2];
#pragma unroll
    for (int i = 0; i < 4; ++i) apart[i] = fabsf(time_difference(rows.times[i / 2], pair.times[i % 2]));
  };
  std::uint32_t const alike = bias.alike[warp];
#pragma unroll
  for (int first = 0; first < Bias::kGroups; first += Bias::kChunkGroups) {
    if ((alike >> first & 1) != 0) {
#pragma unroll
      for (int i = 0; i < 4 * Bias::kChunkGroups; ++i) {
        float& score = scores[4 * first + i];
        score = fmaf(score, factor, bias.steps[warp][first + i / 4].below);
      }
      continue;
    }
#pragma unroll
    for (int group = first; group < first + Bias::kChunkGroups; ++group) {
      TimeStep const step = bias.steps[warp][group];
      float apart[4];
      find_apart(group, apart);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& score = scores[4 * group + i];
        score = fmaf(score, factor, apart[i] >= step.bound ? step.above : step.below);
      }
    }
  }
  std::uint32_t mixed = bias.mixed[warp] & seen;
  // One piece of code for all chunks.
#pragma unroll 1
  for (; mixed != 0; mixed &= mixed - 1) {
    int const first = __ffs(static_cast<int>(mixed)) - 1;
    float apart[4 * Bias::kChunkGroups];
    std::int32_t buckets[4 * Bias::kChunkGroups];
#pragma unroll
    for (int group = 0; group < Bias::kChunkGroups; ++group) find_apart(first + group, apart + 4 * group);
    table.find_buckets(apart, buckets);
#pragma unroll
    for (int i = 0; i < 4 * Bias::kChunkGroups; ++i) apart[i] = table.weight(buckets[i]);
#pragma unroll
    for (int chunk = 0; chunk < Bias::kChunks; ++chunk) {
      if (first != chunk * Bias::kChunkGroups) continue;
#pragma unroll
      for (int i = 0; i < 4 * Bias::kChunkGroups; ++i) scores[4 * chunk * Bias::kChunkGroups + i] += apart[i];
    }
  }
}

}  // namespace headway::kernels
