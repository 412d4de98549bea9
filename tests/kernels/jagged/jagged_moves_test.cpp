// SPDX-License-Identifier: Apache-2.0

// Moves of jagged rows, on the CPU, on an emulated device, and on a CUDA device if there is one.
//
// An item is the list of rows of one feature in one sample; items are numbered feature by feature. Without offsets,
// each has `rows_each` rows. A segment is consecutive items that move together, in an order that a SegmentOrder
// computes (from the list `outer`, for instance). Segments lie packed (one after the other) in one tensor and placed
// (anywhere) in the other. A gather copies from placed to packed, a scatter back. A run is the items of a feature whose
// samples belong to one rank.
//
// Rows are random bytes, and expected results are built from the definition, item by item, with plain loops. The
// shapes are chosen for the edges of the kernels: empty items beside long ones, rows wider than a warp's share,
// tensors of different widths in one call, addresses that are not aligned.

#include "headway/kernels/jagged_moves.hpp"

#include "jagged_backend.hpp"

#include <numeric>
#include <random>

namespace headway::kernels {
namespace {

using Bytes = std::vector<std::uint8_t>;
using Numbers = std::vector<std::int64_t>;
using Direction = JaggedMove::Direction;

Numbers random_numbers(std::mt19937& random, std::int64_t size, std::int64_t end) {
  Numbers numbers(static_cast<std::size_t>(size));
  for (auto& number : numbers) number = std::uniform_int_distribution<std::int64_t>(0, end - 1)(random);
  return numbers;
}

Bytes random_bytes(std::mt19937& random, std::int64_t size) {
  Bytes bytes(static_cast<std::size_t>(size));
  for (auto& byte : bytes) byte = static_cast<std::uint8_t>(random());
  return bytes;
}

/// Bytes of a range of rows.
Bytes rows_of(Bytes const& all, Range rows, std::int64_t row_bytes) {
  return {all.begin() + rows.begin * row_bytes, all.begin() + rows.end * row_bytes};
}

class JaggedMoves : public JaggedKernels {
 protected:
  std::mt19937 random_{1};

  /// Runs a move into a new tensor of `num_out_rows` rows, and returns its bytes.
  Bytes moved(JaggedMove const& move, Bytes const& source, std::int64_t row_bytes, std::int64_t num_out_rows,
              std::byte fill = std::byte{0}) {
    auto const in = backend_->array(source);
    auto const out = backend_->room<std::uint8_t>(num_out_rows * row_bytes);
    MovedRows rows{.source = in.data(), .out = out.data(), .row_bytes = row_bytes};
    std::ranges::fill(rows.fill, fill);
    backend_->move_rows(move, {&rows, 1});
    return to_vector(out);
  }

  /// Move that gathers `items` of jagged `lengths`; `order` must describe the same items.
  JaggedMove permutation(Numbers const& lengths, SegmentOrder const& order, Numbers const& items) {
    Numbers out_lengths;
    for (auto const item : items) out_lengths.push_back(lengths[static_cast<std::size_t>(item)]);
    auto const in_offsets = backend_->array(offsets_of(lengths)),
               out_offsets = backend_->array(offsets_of(out_lengths));
    auto const num_out = static_cast<std::int64_t>(items.size());
    return {.num_segments = num_out,
            .packed = {.offsets = out_offsets.data(), .num_items = num_out},
            .placed = {.offsets = in_offsets.data(),
                       .num_items = static_cast<std::int64_t>(lengths.size()),
                       .order = order},
            .num_packed_rows = out_offsets.back(),
            .num_placed_rows = in_offsets.back()};
  }

  /// Expects a gather of items to give their rows in order, for rows of `row_bytes` bytes.
  void expect_permuted(Numbers const& lengths, SegmentOrder const& order, Numbers const& items,
                       std::int64_t row_bytes) {
    JaggedMove const move = permutation(lengths, order, items);
    Bytes const source = random_bytes(random_, move.num_placed_rows * row_bytes);
    Numbers const offsets = offsets_of(lengths);
    Bytes expected;
    for (auto const item : items) {
      auto const i = static_cast<std::size_t>(item);
      Bytes const rows = rows_of(source, {offsets[i], offsets[i + 1]}, row_bytes);
      expected.insert(expected.end(), rows.begin(), rows.end());
    }
    EXPECT_EQ(moved(move, source, row_bytes, move.num_packed_rows), expected) << "rows of " << row_bytes << " bytes";
  }
};

TEST_P(JaggedMoves, AGatherTakesItemsInTheOrderOfAList) {
  for (std::int64_t const row_bytes : {1, 2, 3, 4, 8, 12, 16, 48, 100, 256, 1040}) {
    Numbers const lengths = random_numbers(random_, 50, 9);
    Numbers const items = random_numbers(random_, 70, 50);
    auto const list = backend_->array(items);
    expect_permuted(lengths, {.outer = list.data()}, items, row_bytes);
  }
}

TEST_P(JaggedMoves, EmptyItemsAndLongOnesLieSideBySide) {
  Numbers lengths(3000, 0);
  lengths[0] = 5;
  lengths[1500] = 4000;
  lengths[1501] = 1;
  lengths[2998] = 700;
  Numbers items(lengths.size());
  std::iota(items.rbegin(), items.rend(), 0);
  auto const list = backend_->array(items);
  expect_permuted(lengths, {.outer = list.data()}, items, 8);
  expect_permuted(lengths, {.outer = list.data()}, items, 80);
  expect_permuted(lengths, {.outer = list.data()}, items, 100);
}

TEST_P(JaggedMoves, RowsLongerThanAWarpsShareAreCut) {
  Numbers const items{2, 0, 1};
  auto const list = backend_->array(items);
  expect_permuted({1, 0, 2}, {.outer = list.data()}, items, 70000);
  expect_permuted({1, 0, 2}, {.outer = list.data()}, items, 5001);
}

TEST_P(JaggedMoves, FeaturesAndSamplesAreChosenByTwoLists) {
  constexpr std::int64_t kFeatures = 4, kSamples = 6;
  Numbers const lengths = random_numbers(random_, kFeatures * kSamples, 5);
  Numbers const features{3, 1, 1}, samples{5, 0, 2, 4};
  Numbers items;
  for (auto const f : features) {
    for (auto const b : samples) items.push_back(f * kSamples + b);
  }
  auto const f = backend_->array(features), b = backend_->array(samples);
  expect_permuted(lengths, SegmentOrder::chosen(f.data(), b.data(), 4, kSamples), items, 16);
}

TEST_P(JaggedMoves, ATransposeGoesFromFeaturesToSamples) {
  constexpr std::int64_t kFeatures = 3, kSamples = 5;
  Numbers items;
  for (std::int64_t b = 0; b < kSamples; ++b) {
    for (std::int64_t f = 0; f < kFeatures; ++f) items.push_back(f * kSamples + b);
  }
  expect_permuted(random_numbers(random_, 15, 7), SegmentOrder::transposed(kFeatures, kSamples), items, 12);
}

TEST_P(JaggedMoves, RunsOfRanksGoThereAndBack) {
  constexpr std::int64_t kFeatures = 3, kSamples = 10;
  Numbers const bounds{0, 4, 4, 9, 10};  // Rank r has the samples bounds[r] to bounds[r + 1].
  Numbers const lengths = random_numbers(random_, kFeatures * kSamples, 6);
  Numbers const offsets = offsets_of(lengths);
  Numbers items, rank_lengths;
  for (std::size_t rank = 0; rank + 1 < bounds.size(); ++rank) {
    for (std::int64_t f = 0; f < kFeatures; ++f) {
      for (std::int64_t b = bounds[rank]; b < bounds[rank + 1]; ++b) {
        items.push_back(f * kSamples + b);
        rank_lengths.push_back(lengths[static_cast<std::size_t>(items.back())]);
      }
    }
  }
  auto const by_feature = backend_->array(offsets), by_rank = backend_->array(offsets_of(rank_lengths));
  auto const on_backend = backend_->array(bounds);
  JaggedMove const gather{
      .num_segments = 4 * kFeatures,
      .packed = {.offsets = by_rank.data(),
                 .num_items = kFeatures * kSamples,
                 .order = SegmentOrder::runs(SegmentOrder::Kind::kRunsByRank, kFeatures, kSamples, on_backend.data())},
      .placed = {.offsets = by_feature.data(),
                 .num_items = kFeatures * kSamples,
                 .order =
                     SegmentOrder::runs(SegmentOrder::Kind::kRunsByFeature, kFeatures, kSamples, on_backend.data())},
      .num_packed_rows = offsets.back(),
      .num_placed_rows = offsets.back()};
  JaggedMove scatter = gather;
  scatter.direction = Direction::kScatter;
  for (std::int64_t const row_bytes : {8, 600, 1616, 3001}) {
    Bytes const source = random_bytes(random_, offsets.back() * row_bytes);
    Bytes expected;
    for (auto const each : items) {
      auto const item = static_cast<std::size_t>(each);
      Bytes const rows = rows_of(source, {offsets[item], offsets[item + 1]}, row_bytes);
      expected.insert(expected.end(), rows.begin(), rows.end());
    }
    EXPECT_EQ(moved(gather, source, row_bytes, offsets.back()), expected) << row_bytes << " bytes";
    EXPECT_EQ(moved(scatter, expected, row_bytes, offsets.back()), source) << row_bytes << " bytes";
  }
}

TEST_P(JaggedMoves, AGatherFillsRowsThatAreNotThereAndAScatterLeavesThemOut) {
  Numbers const lengths{2, 0, 5, 3};
  constexpr std::int64_t kMost = 3, kRowBytes = 6;
  Numbers const offsets = offsets_of(lengths);
  auto const on_backend = backend_->array(offsets);
  Segments const jagged{.offsets = on_backend.data(), .num_items = 4};
  Segments const padded{.rows_each = kMost, .num_items = 4};
  Bytes const source = random_bytes(random_, offsets.back() * kRowBytes);
  Bytes expected, truncated;
  for (std::size_t b = 0; b < 4; ++b) {
    std::int64_t const size = std::min(lengths[b], kMost);
    Bytes const rows = rows_of(source, {offsets[b], offsets[b] + size}, kRowBytes);
    expected.insert(expected.end(), rows.begin(), rows.end());
    expected.insert(expected.end(), static_cast<std::size_t>((kMost - size) * kRowBytes), 7);
    truncated.insert(truncated.end(), rows.begin(), rows.end());
    truncated.insert(truncated.end(), static_cast<std::size_t>((lengths[b] - size) * kRowBytes), 9);
  }
  JaggedMove const pad{
      .num_segments = 4, .packed = padded, .placed = jagged, .num_packed_rows = 12, .num_placed_rows = 10};
  EXPECT_EQ(moved(pad, source, kRowBytes, 12, std::byte{7}), expected);
  JaggedMove const unpad{
      .num_segments = 4, .packed = jagged, .placed = padded, .num_packed_rows = 10, .num_placed_rows = 12};
  EXPECT_EQ(moved(unpad, expected, kRowBytes, 10, std::byte{9}), truncated);
  JaggedMove scatter = unpad;
  scatter.direction = Direction::kScatter;
  Bytes scattered = moved(scatter, source, kRowBytes, 12);
  for (std::size_t i = 0; i < scattered.size(); ++i) {
    if (expected[i] == 7 && scattered[i] == 0xa5) scattered[i] = 7;  // Untouched: room() fills with 0xa5.
  }
  EXPECT_EQ(scattered, expected);
}

TEST_P(JaggedMoves, TheFirstRowOfAPlaceCanGoToAllOfASegment) {
  auto const offsets = backend_->array(Numbers{0, 3, 3, 5});
  JaggedMove const move{.num_segments = 3,
                        .packed = {.offsets = offsets.data(), .num_items = 3},
                        .placed = {.num_items = 3},
                        .num_packed_rows = 5,
                        .num_placed_rows = 3,
                        .placed_row = JaggedMove::PlacedRow::kFirst};
  EXPECT_EQ(moved(move, {1, 2, 3, 4, 5, 6}, 2, 5), (Bytes{1, 2, 1, 2, 1, 2, 5, 6, 5, 6}));
}

TEST_P(JaggedMoves, PaddingHasRowsOfAllWidthsAndSamplesOfAllLengths) {
  Numbers lengths = random_numbers(random_, 150, 60);
  std::fill(lengths.begin() + 40, lengths.begin() + 90, 0);
  constexpr std::int64_t kMost = 40;
  Numbers const offsets = offsets_of(lengths);
  auto const on_backend = backend_->array(offsets);
  auto const num_samples = static_cast<std::int64_t>(lengths.size());
  JaggedMove const pad{.num_segments = num_samples,
                       .packed = {.rows_each = kMost, .num_items = num_samples},
                       .placed = {.offsets = on_backend.data(), .num_items = num_samples},
                       .num_packed_rows = num_samples * kMost,
                       .num_placed_rows = offsets.back()};
  for (std::int64_t const row_bytes : {1, 6, 20, 64, 72}) {
    Bytes const source = random_bytes(random_, offsets.back() * row_bytes);
    Bytes expected;
    for (std::size_t b = 0; b < lengths.size(); ++b) {
      std::int64_t const size = std::min(lengths[b], kMost);
      Bytes const rows = rows_of(source, {offsets[b], offsets[b] + size}, row_bytes);
      expected.insert(expected.end(), rows.begin(), rows.end());
      expected.insert(expected.end(), static_cast<std::size_t>((kMost - size) * row_bytes), 3);
    }
    EXPECT_EQ(moved(pad, source, row_bytes, pad.num_packed_rows, std::byte{3}), expected) << row_bytes << " bytes";
  }
}

TEST_P(JaggedMoves, LongRowsAreSpreadOverManyOfTheirSegment) {
  Numbers const lengths = random_numbers(random_, 60, 7);
  auto const offsets = backend_->array(offsets_of(lengths));
  auto const num_samples = static_cast<std::int64_t>(lengths.size());
  JaggedMove const move{.num_segments = num_samples,
                        .packed = {.offsets = offsets.data(), .num_items = num_samples},
                        .placed = {.num_items = num_samples},
                        .num_packed_rows = offsets.back(),
                        .num_placed_rows = num_samples,
                        .placed_row = JaggedMove::PlacedRow::kFirst};
  for (std::int64_t const row_bytes : {5, 48, 1200, 2051}) {
    Bytes const source = random_bytes(random_, num_samples * row_bytes);
    Bytes expected;
    for (std::int64_t b = 0; b < num_samples; ++b) {
      Bytes const row = rows_of(source, {b, b + 1}, row_bytes);
      for (std::int64_t i = 0; i < lengths[static_cast<std::size_t>(b)]; ++i) {
        expected.insert(expected.end(), row.begin(), row.end());
      }
    }
    EXPECT_EQ(moved(move, source, row_bytes, offsets.back()), expected) << row_bytes << " bytes";
  }
}

TEST_P(JaggedMoves, TensorsOfAllWidthsMoveInOneCallAndMisalignedOnesToo) {
  Numbers const lengths = random_numbers(random_, 40, 8);
  Numbers const items = random_numbers(random_, 40, 40);
  auto const list = backend_->array(items);
  JaggedMove const move = permutation(lengths, {.outer = list.data()}, items);
  std::vector<MovedRows> tensors;
  std::vector<Bytes> expected;
  for (std::int64_t number = 0; number < 70; ++number) {
    std::int64_t const row_bytes = number % 9 * 4 + 1, shift = number % 5;
    Bytes const source = random_bytes(random_, move.num_placed_rows * row_bytes + shift);
    auto const in = backend_->array(source);
    auto const out = backend_->room<std::uint8_t>(move.num_packed_rows * row_bytes + shift);
    tensors.push_back({.source = in.data() + shift, .out = out.data() + shift, .row_bytes = row_bytes});
    Bytes const aligned(source.begin() + shift, source.end());
    expected.push_back(moved(move, aligned, row_bytes, move.num_packed_rows));
  }
  backend_->move_rows(move, tensors);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    auto const* const out = static_cast<std::uint8_t const*>(tensors[i].out);
    EXPECT_EQ(Bytes(out, out + move.num_packed_rows * tensors[i].row_bytes), expected[i]) << "tensor " << i;
  }
}

TEST_P(JaggedMoves, NothingMovesWhereThereIsNothing) {
  auto const offsets = backend_->array(Numbers{0});
  JaggedMove const none{.packed = {.offsets = offsets.data()}, .placed = {}};
  EXPECT_TRUE(moved(none, {}, 8, 0).empty());
  auto const empty_items = backend_->array(Numbers{0, 0, 0});
  JaggedMove const empty{.num_segments = 2,
                         .packed = {.offsets = empty_items.data(), .num_items = 2},
                         .placed = {.offsets = empty_items.data(), .num_items = 2}};
  EXPECT_TRUE(moved(empty, {}, 8, 0).empty());
}

TEST_P(JaggedMoves, SizesOutOfRangeAreRefused) {
  JaggedMove const rows_without_segments{.num_packed_rows = 1};
  EXPECT_THROW(moved(rows_without_segments, {}, 8, 1), std::invalid_argument);
  JaggedMove const nothing{};
  EXPECT_THROW(moved(nothing, {}, 0, 0), std::invalid_argument);
  JaggedMove const scatter{.direction = Direction::kScatter, .placed_row = JaggedMove::PlacedRow::kFirst};
  EXPECT_THROW(moved(scatter, {}, 8, 0), std::invalid_argument);
}

// Offsets that do not add up begin before the first row. The CPU refuses them earlier, so this tests the device.
TEST_P(JaggedMoves, RowsBeforeTheFirstStopADevice) {
  if (GetParam().name != "Emulated") GTEST_SKIP() << "on the emulated device only";
  auto const in_offsets = backend_->array(Numbers{0, 3, 5, 9}), out_offsets = backend_->array(Numbers{-2, 2, 4, 7});
  auto const list = backend_->array(Numbers{2, 1, 0});
  JaggedMove const move{.num_segments = 3,
                        .packed = {.offsets = out_offsets.data(), .num_items = 3},
                        .placed = {.offsets = in_offsets.data(), .num_items = 3, .order = {.outer = list.data()}},
                        .num_packed_rows = 7,
                        .num_placed_rows = 9};
  EXPECT_DEATH(moved(move, Bytes(9 * 8), 8, 7), "lengths add up to the number of rows");
}

INSTANTIATE_TEST_SUITE_P(Backends, JaggedMoves, testing::ValuesIn(jagged_backends()), name_of_backend<JaggedBackend>);

}  // namespace
}  // namespace headway::kernels
