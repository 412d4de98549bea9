// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention_cases.hpp"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace headway::kernels {

/// Sequences of one to four tiles of keys. If there are enough of them, a block of threads takes a whole head of a
/// sequence. The lengths in a case repeat until there are `num_sequences`.
inline std::vector<AttentionCase> short_sequence_cases(std::size_t num_sequences, std::int32_t num_heads) {
  auto const repeated = [num_sequences](auto values) {
    std::size_t const size = values.size();
    for (std::size_t i = size; i < num_sequences; ++i) values.push_back(values[i - size]);
    values.resize(num_sequences);
    return values;
  };
  std::vector<AttentionCase> cases;
  auto const add = [&](AttentionCase added) {
    added.name = "Short" + added.name;
    added.num_heads = num_heads;
    if (added.num_keys.empty()) added.num_keys = added.num_queries;
    for (auto* lengths : {&added.num_queries, &added.num_keys}) *lengths = repeated(std::move(*lengths));
    for (auto* tokens : {&added.num_contextual, &added.num_targets}) {
      if (!tokens->empty()) *tokens = repeated(std::move(*tokens));
    }
    added.options.alpha = 0.125;
    added.options.scale = added.options.length_scaling == LengthScaling::kNone ? 0.01 : 2;
    cases.push_back(std::move(added));
  };
  add({.name = "OneTile", .num_queries = {128, 1, 0, 65, 64, 127, 33, 2}, .dim = 128, .padding = 8});
  add({.name = "FourTiles",
       .num_queries = {129, 0, 5, 260, 64, 30, 1, 410, 90, 12, 140},
       .dim = 128,
       .options = {.length_scaling = LengthScaling::kByNumKeys}});
  add({.name = "AllRules",
       .num_queries = {1, 150, 70, 0, 40, 3, 200},
       .num_keys = {140, 170, 70, 20, 40, 261, 340},
       .dim = 128,
       .options = {.mask = {.window = 70, .full_attention_tail = 30}},
       .num_contextual = {0, 2, 0, 1, 3, 0, 141},
       .num_targets = {1, 9, 70, 0, 2, 3, 20}});
  add({.name = "Biases",
       .num_queries = {129, 40, 3, 0, 135, 64},
       .num_keys = {129, 140, 3, 7, 300, 64},
       .dim = 128,
       .has_position = true,
       .time_bounds = logarithmic_bounds(30),
       .longest_gap = 50});
  add({.name = "Dim64", .num_queries = {129, 0, 5, 280, 64, 1}, .dim = 64});
  add({.name = "Dim256",
       .num_queries = {65, 1, 64, 140, 0, 20},
       .dim = 256,
       .options = {.mask = {.causality = Causality::kBidirectional, .window = 80}}});
  return cases;
}

}  // namespace headway::kernels
