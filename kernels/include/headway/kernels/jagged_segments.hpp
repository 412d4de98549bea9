// SPDX-License-Identifier: Apache-2.0

// Segments of jagged tensors: which rows belong together, in an order that may differ from that in memory.
//
// Example: F = 2 features, B = 3 samples, items in the order of features: f0s0 f0s1 f0s2 f1s0 f1s1 f1s2. They have
//  1 2 0 1 1 3 rows, so offsets are 0 1 3 3 4 5 8. Segments of transposed(2, 3) are items 0 3 1 4 2 5: segment 1 is
//  item 3, row 3. whole(nullptr, 3) has two segments: rows 0 to 2 and rows 3 to 7.
//
// Nothing is materialised: an order is a few numbers and at most two lists, and a kernel computes the items of each
// segment when it needs them.

#pragma once

#include "headway/kernels/host_device.hpp"

#include <cstdint>

namespace headway::kernels {

/// Integers from `begin` up to, but not including, `end`.
struct Range {
  std::int64_t begin = 0, end = 0;

  [[nodiscard]] HEADWAY_HOST_DEVICE std::int64_t size() const { return end - begin; }
};

/// Maps the number of a segment to its items: segment (i, j) has the number i * num_inner + j.
struct SegmentOrder {
  enum class Kind : std::uint8_t {
    kListed,  ///< (i, j) is `span` items from outer[i] * outer_stride + inner[j] * inner_stride.
    // A run is the items of one feature whose samples belong to one rank.
    kRunsByFeature,  ///< (rank i, feature j) of items in the order of features, then samples.
    kRunsByRank,     ///< (rank i, feature j) of items in the order of ranks, then features, then samples.
  };
  Kind kind = Kind::kListed;
  std::int64_t num_inner = 1;

  std::int64_t const* outer = nullptr;  ///< Null: 0, 1, 2, ...
  std::int64_t const* inner = nullptr;  ///< Likewise.
  std::int64_t outer_stride = 1, inner_stride = 1, span = 1;

  std::int64_t const* bounds = nullptr;  ///< For runs (ranks + 1): rank i has samples [bounds[i], bounds[i + 1]).
  std::int64_t num_samples = 0;          ///< For runs: the last bound.

  /// Segments of one item each, `stride` items apart.
  static SegmentOrder every(std::int64_t stride) { return {.outer_stride = stride}; }
  /// One segment per feature with all its samples. `features` selects features; null selects all.
  static SegmentOrder whole(std::int64_t const* features, std::int64_t num_samples) {
    return {.outer = features, .outer_stride = num_samples, .span = num_samples};
  }
  /// (B, F) segments from (F, B) items.
  static SegmentOrder transposed(std::int64_t num_features, std::int64_t num_samples) {
    return {.num_inner = num_features, .inner_stride = num_samples};
  }
  /// Segments of chosen features and samples from (F, B) items. Null selects all features.
  static SegmentOrder chosen(std::int64_t const* features, std::int64_t const* samples, std::int64_t num_chosen_samples,
                             std::int64_t num_samples) {
    return {.num_inner = num_chosen_samples, .outer = features, .inner = samples, .outer_stride = num_samples};
  }
  /// Segments by rank and feature; `bounds` splits the samples among ranks.
  static SegmentOrder runs(Kind kind, std::int64_t num_features, std::int64_t num_samples, std::int64_t const* bounds) {
    return {.kind = kind, .num_inner = num_features, .bounds = bounds, .num_samples = num_samples};
  }

  /// Does segment i consist of the items from i * span to (i + 1) * span?
  [[nodiscard]] HEADWAY_HOST_DEVICE bool is_in_order() const {
    return kind == Kind::kListed && num_inner == 1 && outer == nullptr && inner == nullptr && outer_stride == span;
  }

  /// Items of a segment.
  [[nodiscard]] HEADWAY_HOST_DEVICE Range items(std::uint32_t segment) const {
    auto const width = static_cast<std::uint32_t>(num_inner);
    std::uint32_t const i = width == 1 ? segment : segment / width, j = segment - i * width;
    if (kind == Kind::kListed) {
      std::int64_t const item =
          (outer == nullptr ? i : outer[i]) * outer_stride + (inner == nullptr ? j : inner[j]) * inner_stride;
      return {item, item + span};
    }
    std::int64_t const first = sample_bound(i), last = sample_bound(i + 1), size = last < first ? 0 : last - first;
    std::int64_t const begin = kind == Kind::kRunsByFeature ? j * num_samples + first : first * num_inner + j * size;
    return {begin, begin + size};
  }

 private:
  /// Bound of rank i, clamped to the samples: wrong bounds give wrong row counts, but never leave the items.
  [[nodiscard]] HEADWAY_HOST_DEVICE std::int64_t sample_bound(std::uint32_t i) const {
    std::int64_t const bound = bounds[i] < 0 ? 0 : bounds[i];
    return bound < num_samples ? bound : num_samples;
  }
};

/// Segments of rows. Items lie in memory one after the other, each with some rows. A segment is one or more items.
struct Segments {
  /// (num_items + 1), from 0, not descending; null: each item has `rows_each` rows.
  std::int64_t const* offsets = nullptr;
  std::int64_t rows_each = 1;
  std::int64_t num_items = 0;
  SegmentOrder order{};

  [[nodiscard]] HEADWAY_HOST_DEVICE bool has(Range items) const {
    return 0 <= items.begin && items.begin <= items.end && items.end <= num_items;
  }
  [[nodiscard]] HEADWAY_HOST_DEVICE std::int64_t row_of(std::int64_t item) const {
    return offsets == nullptr ? item * rows_each : offsets[item];
  }
  [[nodiscard]] HEADWAY_HOST_DEVICE Range rows_of(Range items) const {
    return {row_of(items.begin), row_of(items.end)};
  }
  [[nodiscard]] HEADWAY_HOST_DEVICE Range rows(std::uint32_t segment) const { return rows_of(order.items(segment)); }
  [[nodiscard]] HEADWAY_HOST_DEVICE std::int64_t begin(std::uint32_t segment) const {
    return row_of(order.items(segment).begin);
  }

  /// Rows per segment if all have equally many and lie in order; otherwise 0.
  [[nodiscard]] HEADWAY_HOST_DEVICE std::int64_t rows_of_each() const {
    return offsets == nullptr && order.is_in_order() ? order.span * rows_each : 0;
  }

  /// Segment in [first, end) that contains `row`: the last one that begins at or before it. Segments must lie in order.
  /// Binary search.
  [[nodiscard]] HEADWAY_HOST_DEVICE std::uint32_t segment_of(std::int64_t row, std::uint32_t first,
                                                             std::uint32_t end) const {
    while (end - first > 1) {
      std::uint32_t const middle = first + (end - first) / 2;
      (begin(middle) <= row ? first : end) = middle;
    }
    return first;
  }
};

}  // namespace headway::kernels
