// SPDX-License-Identifier: Apache-2.0
#pragma once

// Plans which rank computes which samples of a step, so that all ranks have about the same work.
//
// Idea: samples are sorted by weight, the heaviest first; at equal weight the one with the smaller index comes first.
// They are then dealt to bins, one for each rank, by one of four methods:
// - kFixedGreedy: to the bin of the least weight that still has room. All bins have the same number of samples, +-1.
// - kFixedZigzag: to the bins from left to right, then from right to left, and so on. The same numbers, +-1.
// - kVariableGreedy: to the bin of the least weight. Numbers of samples differ.
// - kVariableSegments: contiguous segments of the sorted list, which have about the same weight.
// Bin b goes to rank (b + step) mod num_ranks. Otherwise the first bin, which is the heaviest where weights are equal,
// would be of the same rank in every step.
//
// Example: weights 9 1 5 5 4 2 and two ranks at step 0. The sorted weights are 9 5 5 4 2 1. The bins get:
// - kFixedGreedy: 9 4 1 and 5 5 2. The second bin is full when the last sample comes.
// - kFixedZigzag: 9 4 2 and 5 5 1.
// - kVariableGreedy: 9 4 and 5 5 2 1.
// - kVariableSegments: 9 5 and 5 4 2 1.
//
// Invariants: all arithmetic is of integers, so all ranks find the same plan. No rank gets more than `max_tokens`.
// Complexity: O(N log N + N log R) for N samples and R ranks; up to O(N R log R) where `max_tokens` binds most samples.
// Source: FreeScale (MLSys 2026): zig-zag for batches of fixed size, segments for those of variable size. Greedy is
//   longest processing time first (Graham 1969).

#include <cstdint>
#include <span>

namespace headway::kernels {

enum class BatchPlanMethod : std::uint8_t { kFixedGreedy, kFixedZigzag, kVariableGreedy, kVariableSegments };

/// Arguments of plan_batches(), for N samples.
struct BatchPlan {
  BatchPlanMethod method = BatchPlanMethod::kFixedGreedy;
  std::span<std::int64_t const> weights;  ///< (N) cost of each sample.
  std::span<std::int64_t const> tokens;   ///< (N); empty if there is no limit.
  std::int64_t max_tokens = 0;            ///< Most tokens of a rank; 0: no limit.
  std::int64_t num_ranks = 1;
  std::int64_t step = 0;
  std::span<std::int64_t> ranks;  ///< (N) output: rank of each sample.
};

/// Plans a step. If a method leaves a rank with more than `max_tokens`, the samples are dealt by the greedy method of
/// the same kind instead, which passes over full bins; if that finds no room, by tokens instead of weights.
/// @throws std::invalid_argument a weight or a number of tokens is negative, sums do not fit 63 bits, or no rank has
///   room for a sample
void plan_batches(BatchPlan const& plan);

}  // namespace headway::kernels
