// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention_case.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace headway::kernels {

/// Fills every other sequence, from `first` (0 or 1) on, with numbers that are not finite. They must not affect the
/// others.
class BadSequences {
 public:
  explicit BadSequences(std::size_t first) : first_(first) {}

  /// Writes NaN and infinity into all inputs of the bad sequences.
  void plant(AttentionCase const& of, AttentionTensors& tensors) const {
    auto const spoil = [&](std::vector<float>& values, std::vector<std::int64_t> const& offsets, std::int32_t columns) {
      for_each(offsets, of.num_heads * columns, true, [&](std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; ++i) values[i] = i % 3 == 0 ? std::numeric_limits<float>::infinity() : NAN;
      });
    };
    spoil(tensors.query, tensors.query_offsets, of.dim);
    spoil(tensors.key, tensors.key_offsets, of.dim);
    spoil(tensors.value, tensors.key_offsets, of.value_columns());
    spoil(tensors.grad_out, tensors.query_offsets, of.value_columns());
  }

  /// Expects the rows of all good sequences to equal those of `clean`, which was computed without bad sequences.
  /// @param row elements per token: heads times columns
  void expect_others_are(std::vector<float> const& clean, std::vector<float> const& values,
                         std::vector<std::int64_t> const& offsets, std::int32_t row) const {
    for_each(offsets, row, false, [&](std::size_t begin, std::size_t end) {
      auto const at = static_cast<std::ptrdiff_t>(begin), behind = static_cast<std::ptrdiff_t>(end);
      EXPECT_TRUE(std::equal(values.begin() + at, values.begin() + behind, clean.begin() + at))
          << "rows from " << begin / static_cast<std::size_t>(row) << " on";
    });
  }

 private:
  /// Visits the range of elements of each bad (or good) sequence.
  template <class Visit>
  void for_each(std::vector<std::int64_t> const& offsets, std::int32_t row, bool bad, Visit visit) const {
    for (std::size_t b = 0; b + 1 < offsets.size(); ++b) {
      if ((b % 2 == first_) == bad) {
        visit(static_cast<std::size_t>(offsets[b] * row), static_cast<std::size_t>(offsets[b + 1] * row));
      }
    }
  }

  std::size_t first_;
};

}  // namespace headway::kernels
