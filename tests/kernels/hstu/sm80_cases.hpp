// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention_cases.hpp"

#include <algorithm>
#include <string>
#include <vector>

namespace headway::kernels {

/// Cases of attention_cases(), and cases that only the sm_80 kernels support: any number of columns, rows at any
/// address.
inline std::vector<AttentionCase> sm80_cases() {
  std::vector<AttentionCase> cases = attention_cases();
  auto const add = [&cases](AttentionCase added) {
    if (added.num_keys.empty()) added.num_keys = added.num_queries;
    added.options.alpha = 0.125;
    added.options.scale = 0.01;
    cases.push_back(std::move(added));
  };
  add({.name = "OddColumns", .num_queries = {70, 3, 65}, .num_heads = 2, .dim = 27, .value_dim = 45});
  add({.name = "AlignedRowsOfOddColumns", .num_queries = {66, 40}, .dim = 37, .padding = 3});
  add({.name = "NarrowQueries", .num_queries = {50, 90}, .dim = 8, .padding = 8, .value_dim = 72});
  add({.name = "WideQueries", .num_queries = {30, 70}, .num_heads = 3, .dim = 200, .padding = 1, .value_dim = 16});
  add({.name = "OneColumn", .num_queries = {20}, .dim = 1});
  add({.name = "KeysWithoutQueries", .num_queries = {0, 20}, .num_keys = {40, 33}, .dim = 16, .has_position = true});
  add({.name = "NoQueries", .num_queries = {0, 0}, .num_keys = {40, 5}, .dim = 16, .has_position = true});
  add({.name = "NoSequences", .num_queries = {}, .dim = 16});
  return cases;
}

/// Cases of sm80_cases() with these names.
inline std::vector<AttentionCase> cases_named(std::vector<std::string> const& names) {
  std::vector<AttentionCase> cases = sm80_cases();
  std::erase_if(cases, [&names](AttentionCase const& of) {
    return std::find(names.begin(), names.end(), of.name) == names.end();
  });
  return cases;
}

}  // namespace headway::kernels
