// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention_case.hpp"

#include <cmath>
#include <vector>

namespace headway::kernels {

/// Time bounds at even distances of logarithms: 8 for each factor of 2, from 1 on.
inline std::vector<float> even_bounds(int size) {
  std::vector<float> bounds;
  for (int i = 0; i < size; ++i) bounds.push_back(std::exp2((static_cast<float>(i) + 0.5F) / 8));
  return bounds;
}

/// Time bounds of generative-recommenders, the code of HSTU's authors: one bucket per 0.301 of the natural logarithm.
inline std::vector<float> logarithmic_bounds(int size) {
  std::vector<float> bounds;
  for (int i = 1; i <= size; ++i) bounds.push_back(std::exp(0.301F * static_cast<float>(i)));
  return bounds;
}

/// Time bounds at multiples of 10.
inline std::vector<float> linear_bounds(int size) {
  std::vector<float> bounds;
  for (int i = 1; i <= size; ++i) bounds.push_back(10.0F * static_cast<float>(i));
  return bounds;
}

/// Cases for all attention kernels: lengths around the sizes of tiles, each mask rule alone and all together, biases,
/// strides, scalings.
inline std::vector<AttentionCase> attention_cases() {
  std::vector<AttentionCase> cases;
  auto const add = [&cases](AttentionCase added) {
    if (added.num_keys.empty()) added.num_keys = added.num_queries;
    cases.push_back(std::move(added));
  };
  HstuAttentionOptions causal;
  causal.alpha = 0.125;
  causal.scale = 0.01;
  auto const masked = [&causal](HstuMaskOptions const& mask) {
    HstuAttentionOptions options = causal;
    options.mask = mask;
    return options;
  };
  HstuAttentionOptions by_length = causal;
  by_length.scale = 2;
  by_length.length_scaling = LengthScaling::kByNumKeys;
  add({.name = "Causal", .num_queries = {0, 1, 127, 128, 129, 0, 300}, .num_heads = 2, .options = causal});
  add({.name = "OneToken", .num_queries = {1}, .dim = 32, .options = causal});
  add({.name = "Dim32Padded", .num_queries = {70, 200}, .num_heads = 2, .dim = 32, .options = by_length, .padding = 8});
  add({.name = "Dim128", .num_queries = {130, 5, 257}, .dim = 128, .options = by_length});
  add({.name = "Dim256", .num_queries = {81, 200}, .dim = 256, .options = causal});
  add({.name = "Bidirectional",
       .num_queries = {100, 260},
       .num_heads = 3,
       .options = masked({.causality = Causality::kBidirectional})});
  add({.name = "Window", .num_queries = {400, 90}, .options = masked({.window = 50})});
  add({.name = "WindowAhead",
       .num_queries = {390},
       .options = masked({.causality = Causality::kBidirectional, .window = 37})});
  add({.name = "ContextAndTargets",
       .num_queries = {200, 150, 12},
       .options = causal,
       .num_contextual = {3, 140, 0},
       .num_targets = {20, 0, 12}});
  // Tokens see 60 positions back, but targets and the last 30 positions of the history (the tail) see all before them.
  add({.name = "AllRules",
       .num_queries = {520, 40},
       .options = masked({.window = 60, .full_attention_tail = 30}),
       .num_contextual = {2, 1},
       .num_targets = {9, 3}});
  add({.name = "CachedKeys",
       .num_queries = {1, 64, 100},
       .num_keys = {300, 64, 271},
       .num_heads = 2,
       .options = causal,
       .num_targets = {1, 3, 70}});
  add({.name = "Position", .num_queries = {140, 260}, .options = causal, .has_position = true});
  add({.name = "PositionCachedKeys",
       .num_queries = {140, 3},
       .num_keys = {260, 150},
       .dim = 128,
       .options = causal,
       .has_position = true});
  add({.name = "Time",
       .num_queries = {200, 129},
       .options = causal,
       .time_bounds = logarithmic_bounds(60),
       .longest_gap = 100'000});
  add({.name = "TimeAndPosition",
       .num_queries = {150, 40},
       .dim = 256,
       .options = by_length,
       .has_position = true,
       .time_bounds = logarithmic_bounds(40),
       .longest_gap = 50});
  // Several bounds share a cell of a TimeTable, the table in which kernels look up the bucket of a time difference.
  add({.name = "TimeCrowded",
       .num_queries = {150},
       .options = causal,
       .time_bounds = {0, 0, 0.5, 1, 100, 100, 101, 102, 103, 5000},
       .longest_gap = 40});
  // Times lie more than 2^24 before and after those of a tile. Beyond 2^24, floats do not hold every integer.
  add({.name = "TimeFarApart",
       .num_queries = {260, 70},
       .dim = 128,
       .options = masked({.causality = Causality::kBidirectional}),
       .time_bounds = logarithmic_bounds(70),
       .shortest_gap = -20'000'000,
       .longest_gap = 50'000'000});
  // Two cases: most groups of pairs (16 queries by 8 keys on sm_90) lie in one or two buckets; most lie in more.
  add({.name = "TimeFewBuckets",
       .num_queries = {300, 65},
       .num_heads = 2,
       .options = causal,
       .time_bounds = {1, 20, 100, 350},
       .longest_gap = 3});
  add({.name = "TimeManyBuckets",
       .num_queries = {257},
       .dim = 32,
       .options = causal,
       .time_bounds = linear_bounds(1000),
       .longest_gap = 60});
  // Three limits: most bounds for which sm_90 rounds weights to 16 bits (RoundedTimeWeights), one more, and most bounds
  // of a TimeTable.
  add({.name = "TimeMostRounded",
       .num_queries = {140},
       .dim = 256,
       .options = causal,
       .time_bounds = even_bounds(509),
       .longest_gap = 100'000});
  add({.name = "TimeTooManyToRound",
       .num_queries = {140},
       .options = causal,
       .time_bounds = even_bounds(510),
       .longest_gap = 100'000});
  add({.name = "TimeMostBounds",
       .num_queries = {140},
       .dim = 256,
       .options = causal,
       .time_bounds = linear_bounds(1023),
       .longest_gap = 1000});
  add({.name = "TimeUnsortedAndPosition",
       .num_queries = {129, 300},
       .num_keys = {200, 300},
       .dim = 128,
       .options = masked({.causality = Causality::kBidirectional, .window = 200}),
       .num_contextual = {3, 0},
       .num_targets = {0, 9},
       .has_position = true,
       .time_bounds = logarithmic_bounds(60),
       .shortest_gap = -4000,
       .longest_gap = 5000});
  add({.name = "TimeCrowdedAndPosition",
       .num_queries = {270, 31},
       .num_heads = 2,
       .dim = 128,
       .options = by_length,
       .has_position = true,
       .time_bounds = {0, 0, 100, 100, 101, 1000, 1001, 1002, 20'000},
       .longest_gap = 200});
  return cases;
}

/// Most groups of pairs are in two buckets of time differences, and the first bucket is hidden by a huge negative
/// weight. A kernel may add the first weight to all pairs of a group, and the difference of the two weights to those in
/// the second bucket. Beside a huge weight that difference would be lost.
inline AttentionCase hidden_bucket_case() {
  return {.name = "HiddenBucket",
          .num_queries = {300, 65},
          .num_keys = {300, 65},
          .options = {.alpha = 0.125},
          .time_bounds = {100, 350},
          .longest_gap = 3,
          .hidden_weight = -1e9F};
}

/// Hidden buckets for pairs in more than two buckets, whose weights are looked up one by one.
inline AttentionCase hidden_pairs_case() {
  return {.name = "HiddenPairs",
          .num_queries = {200},
          .num_keys = {200},
          .options = {.alpha = 0.125},
          .time_bounds = logarithmic_bounds(60),
          .longest_gap = 100'000,
          .hidden_weight = -1e9F};
}

}  // namespace headway::kernels
