// SPDX-License-Identifier: Apache-2.0

// The calls of a CUDA device's BatchDevice on weights, values and keys with values, compared with the host.
//
// The known keys of a batch are its valid prefix. The host knows its length, or only the device (Keys::num_known).

#include "batch_device_fixture.hpp"

#include <algorithm>
#include <functional>
#include <list>
#include <numeric>
#include <random>

namespace headway::embedding {
namespace {

/// Keys with values on the host, and their copy on the device with a random number of known keys there.
struct Piece {
  Piece(std::mt19937_64& random, std::size_t size, std::uint32_t num_tables, std::size_t dim)
      : batch(random_batch(random, {.size = size, .num_ids = 1'000, .num_tables = num_tables})),
        values(random_integers(random, size * dim)),
        num_known(static_cast<std::uint32_t>(random() % (size + 1))),
        on_device(batch),
        device_values(values),
        device_known(1, num_known) {}

  [[nodiscard]] KeyValues view(bool is_known_to_host) const {
    return {.keys = on_device.keys(is_known_to_host ? nullptr : device_known.data()), .values = device_values.span()};
  }
  [[nodiscard]] std::size_t known(bool is_known_to_host) const {
    return is_known_to_host ? batch.ids.size() : num_known;
  }

  HostBatch batch;
  std::vector<float> values;
  std::uint32_t num_known;
  DeviceBatch on_device;
  DeviceArray<float> device_values;
  DeviceArray<std::uint32_t> device_known;
};

/// Rows of which about a third are kNone.
std::vector<RowId> random_rows(std::mt19937_64& random, std::size_t size) {
  std::vector<RowId> rows(size);
  for (auto& row : rows) row = random() % 3 == 0 ? RowId::kNone : RowId{static_cast<std::uint32_t>(random() % 99 + 1)};
  return rows;
}

TEST_F(CudaBatchDeviceTest, RefusedKeysAreCounted) {
  for (std::size_t const size : {0, 1, 255, 10'000}) {
    std::vector<KeyStatus> statuses(size);
    for (auto& status : statuses) status = static_cast<KeyStatus>(random_() % 5);
    DeviceArray<KeyStatus> const on_device(statuses);
    DeviceArray<float> const result(1, -1);
    device_->count_refused(on_device.span(), result.data());
    EXPECT_EQ(result.all()[0], static_cast<float>(std::ranges::count(statuses, KeyStatus::kNoRoom)));
  }
}

TEST_F(CudaBatchDeviceTest, KeysWithoutARowGetNoWeight) {
  for (std::size_t const size : {0, 1, 1'000}) {
    for (bool const has_weights : {false, true}) {
      auto const rows = random_rows(random_, size / 2 + 1);
      std::vector<std::uint32_t> inverse_indices(size);
      for (auto& index : inverse_indices) index = static_cast<std::uint32_t>(random_() % rows.size());
      // An undefined index, as of a key beyond the known ones.
      if (size > 1) inverse_indices.back() = 0xfffffff0;
      auto const weights = random_integers(random_, has_weights ? size : 0);
      std::vector<float> expected(size);
      for (std::size_t i = 0; i < size; ++i) {
        bool const has_row = inverse_indices[i] < rows.size() && rows[inverse_indices[i]] != RowId::kNone;
        expected[i] = has_row ? (has_weights ? weights[i] : 1) : 0;
      }
      DeviceArray<RowId> const device_rows(rows);
      DeviceArray<std::uint32_t> const indices(inverse_indices);
      DeviceArray<float> const device_weights(weights), out(size, -99);
      device_->mask_weights(device_rows.span(), indices.span(), device_weights.span(), out.span());
      EXPECT_EQ(out.all(), expected);
    }
  }
}

TEST_F(CudaBatchDeviceTest, KeysWithoutARowGetZeros) {
  for (std::size_t const dim : {1, 3, 8}) {
    for (std::size_t const size : {0, 1, 1'000}) {
      auto const rows = random_rows(random_, size);
      auto values = random_integers(random_, size * dim);
      DeviceArray<RowId> const device_rows(rows);
      DeviceArray<float> const on_device(values);
      device_->mask_rows(device_rows.span(), dim, on_device.span());
      for (std::size_t i = 0; i < values.size(); ++i) {
        if (rows[i / dim] == RowId::kNone) values[i] = 0;
      }
      EXPECT_EQ(on_device.all(), values);
    }
  }
}

TEST_F(CudaBatchDeviceTest, ValuesAreFilledScaledAndDivided) {
  for (std::size_t const size : {0, 1, 5, 10'000}) {
    for (std::size_t const shift : {0, 1}) {
      SCOPED_TRACE(testing::Message() << size << " values from " << shift);
      std::vector<float> values(size + shift + 1);
      for (auto& value : values) value = std::normal_distribution<float>(0, 1)(random_);
      DeviceArray<float> const on_device(values), factor(1, 0.3F);
      auto const part = on_device.span().subspan(shift, size);
      auto const expect = [&](auto const& change) {
        for (std::size_t i = 0; i < size; ++i) values[shift + i] = change(values[shift + i]);
        EXPECT_EQ(on_device.all(), values);
      };
      device_->scale(part, 1.7F);
      expect([](float value) { return value * 1.7F; });
      device_->divide(part, 3);
      expect([](float value) { return value * (1.0F / 3); });
      device_->scale_by(part, factor.data());
      expect([](float value) { return value * 0.3F; });
      device_->fill(part, -2);
      expect([](float /*value*/) { return -2.0F; });
    }
  }
}

TEST_F(CudaBatchDeviceTest, SquaresOfKnownKeysAreAdded) {
  for (std::size_t const dim : {3, 8}) {
    for (std::size_t const size : {0, 1, 1'000, 50'000}) {
      for (bool const is_known_to_host : {false, true}) {
        Piece const piece(random_, size, 1, dim);
        double expected = 0.5;  // Integers: the sum is exact.
        for (std::size_t i = 0; i < piece.known(is_known_to_host) * dim; ++i)
          expected += piece.values[i] * piece.values[i];
        DeviceArray<double> const sum(1, 0.5);
        device_->add_squares(piece.view(is_known_to_host), dim, sum.data());
        EXPECT_EQ(sum.all()[0], expected);
      }
    }
  }
}

TEST_F(CudaBatchDeviceTest, TheSumOfSquaresHasTheSameBitsInAllRuns) {
  constexpr std::size_t kSize = 100'000, kDim = 8;
  std::vector<float> values(kSize * kDim + 1);
  for (auto& value : values) value = std::normal_distribution<float>(0, 1)(random_);
  std::vector<float> shifted(values.begin() + 1, values.end());
  DeviceArray<float> const on_device(values), other(shifted);
  DeviceBatch const batch(random_batch(random_, {.size = kSize}));
  DeviceArray<double> const sums(4, 0);
  for (std::size_t i = 0; i < 4; ++i) {
    // The last call gets the same values at another alignment.
    auto const from = i == 3 ? other.span() : on_device.span().subspan(1);
    device_->add_squares({.keys = batch.keys(), .values = from}, kDim, sums.data() + i);
  }
  auto const all = sums.all();
  EXPECT_EQ(std::ranges::count(all, all[0]), 4);
  double const exact = std::transform_reduce(shifted.begin(), shifted.end(), 0.0, std::plus{},
                                             [](float value) { return static_cast<double>(value) * value; });
  EXPECT_NEAR(all[0], exact, exact * 1e-9);
}

TEST_F(CudaBatchDeviceTest, PiecesAreConcatenatedWithTheirKnownKeysFirst) {
  for (std::size_t const num_pieces : {0, 1, 3, 200}) {
    for (std::size_t const dim : {3, 8}) {
      // The host knows the number of keys of no piece, of each second one, or of all.
      for (int const kind : {0, 1, 2}) {
        SCOPED_TRACE(testing::Message() << num_pieces << " pieces, dim " << dim << " kind " << kind);
        std::list<Piece> pieces;
        std::vector<KeyValues> views;
        std::vector<std::uint64_t> ids;
        std::vector<std::uint32_t> tables;
        std::vector<float> values;
        std::size_t num_keys = 0;
        for (std::size_t i = 0; i < num_pieces; ++i) {
          std::size_t const size = i % 7 == 3 ? i % 2 : random_() % 300;
          auto const& piece = pieces.emplace_back(random_, size, i % 3 == 0 ? 4U : 1U, dim);
          bool const is_known = kind == 2 || (kind == 1 && i % 2 == 0);
          views.push_back(piece.view(is_known));
          auto const keys = piece.batch.keys(piece.known(is_known));
          for (std::size_t key = 0; key < keys.size(); ++key) {
            ids.push_back(keys[key].id);
            tables.push_back(keys[key].table);
          }
          values.insert(values.end(), piece.values.begin(),
                        piece.values.begin() + static_cast<std::ptrdiff_t>(keys.size() * dim));
          num_keys += size;
        }
        auto const all = device_->concatenate(views, dim);
        ASSERT_EQ(all.ids.size(), num_keys);
        ASSERT_EQ(all.tables.size(), num_keys);
        ASSERT_EQ(all.values.size(), num_keys * dim);
        bool const has_unknown =
            std::ranges::any_of(views, [](auto const& view) { return view.keys.num_known != nullptr; });
        ASSERT_EQ(all.size_on_device.size(), has_unknown ? 1 : 0);
        if (has_unknown) {
          ASSERT_EQ(download(all.size_on_device)[0], ids.size());
        }
        EXPECT_TRUE(download(all.ids.first(ids.size())) == ids);
        EXPECT_TRUE(download(all.tables.first(ids.size())) == tables);
        EXPECT_TRUE(download(all.values.first(values.size())) == values);
      }
    }
  }
}

TEST_F(CudaBatchDeviceTest, TheKeysOfATableAreSelectedInTheirOrder) {
  for (std::size_t const size : {0, 1, 257, 20'000}) {
    for (std::size_t const dim : {3, 8}) {
      for (std::uint32_t const num_tables : {1U, 3U}) {
        for (bool const is_known_to_host : {false, true}) {
          Piece const piece(random_, size, num_tables, dim);
          auto const rows = random_rows(random_, size);
          DeviceArray<RowId> const device_rows(rows);
          auto const keys = piece.batch.keys(piece.known(is_known_to_host));
          for (std::uint32_t const table : {1U, 9U}) {
            std::vector<std::uint64_t> ids;
            std::vector<RowId> expected_rows;
            std::vector<float> values;
            for (std::size_t i = 0; i < keys.size(); ++i) {
              if (keys[i].table != table) continue;
              ids.push_back(keys[i].id);
              expected_rows.push_back(rows[i]);
              for (std::size_t j = 0; j < dim; ++j) values.push_back(piece.values[i * dim + j]);
            }
            auto const selected = device_->select_table(piece.view(is_known_to_host), device_rows.span(), dim, table);
            ASSERT_EQ(selected.ids.size(), size);
            ASSERT_EQ(download(selected.size_on_device).at(0), ids.size());
            EXPECT_TRUE(download(selected.ids.first(ids.size())) == ids);
            EXPECT_TRUE(download(selected.tables.first(ids.size())) == std::vector(ids.size(), table));
            EXPECT_TRUE(download(selected.rows.first(ids.size())) == expected_rows);
            EXPECT_TRUE(download(selected.values.first(values.size())) == values);
          }
        }
      }
    }
  }
}

// mark_shared(), split() and moves of rows at positions, as prioritized updates use them.
TEST_F(CudaBatchDeviceTest, PositionsAndTheirRowsAreThoseOfTheCpu) {
  auto const on_host = make_host_batch_device();
  for (std::size_t const size : {0, 1, 255, 30'000}) {
    std::size_t const num_first = size / 3;
    std::vector<std::uint32_t> indices(size);
    for (auto& index : indices) index = static_cast<std::uint32_t>(random_() % (size / 2 + 1));
    std::vector<float> marks(size);
    on_host->mark_shared(indices, num_first, marks);
    DeviceArray<std::uint32_t> const device_indices(indices);
    DeviceArray<float> const device_marks(size, -1);
    device_->mark_shared(device_indices.span(), num_first, device_marks.span());
    EXPECT_EQ(device_marks.all(), marks);
    if (size > 2) marks[2] = -1;  // It is in neither list.
    DeviceArray<float> const some_marks(marks);
    std::vector<std::size_t> const sizes{num_first, 0, size - num_first};
    auto const expected = on_host->split(marks, sizes), split = device_->split(some_marks.span(), sizes);
    auto const counts = download(split.counts);
    ASSERT_TRUE(std::ranges::equal(counts, expected.counts.span));
    auto const num_marked = static_cast<std::size_t>(counts[0] + counts[1] + counts[2]);
    auto const num_others = static_cast<std::size_t>(counts[3] + counts[4] + counts[5]);
    EXPECT_TRUE(std::ranges::equal(download(split.marked.first(num_marked)), expected.marked.span.first(num_marked)));
    EXPECT_TRUE(std::ranges::equal(download(split.others.first(num_others)), expected.others.span.first(num_others)));
    for (std::size_t const width : {1, 3, 8}) {
      auto const rows = random_integers(random_, size * width);
      DeviceArray<float> const device_rows(rows), back(size * width, 0);
      std::vector<float> chosen(num_marked * width), expected_back(size * width);
      on_host->gather_rows(rows, width, expected.marked.span.first(num_marked), chosen);
      on_host->scatter_rows(chosen, width, expected.marked.span.first(num_marked), expected_back);
      DeviceArray<float> const gathered(num_marked * width, 0);
      device_->gather_rows(device_rows.span(), width, split.marked.span.first(num_marked), gathered.span());
      device_->scatter_rows(gathered.span(), width, split.marked.span.first(num_marked), back.span());
      EXPECT_EQ(gathered.all(), chosen);
      EXPECT_EQ(back.all(), expected_back);
    }
    auto const some_rows = random_rows(random_, size);
    DeviceArray<RowId> const device_some_rows(some_rows);
    std::vector<float> absent(size);
    on_host->mark_absent(some_rows, absent);
    DeviceArray<float> const device_absent(size, 0);
    device_->mark_absent(device_some_rows.span(), device_absent.span());
    EXPECT_EQ(device_absent.all(), absent);
    auto const batch = random_batch(random_, {.size = size, .num_tables = 3});
    DeviceBatch const device_batch(batch);
    DeviceArray<std::uint64_t> const ids(num_marked, 0);
    DeviceArray<std::uint32_t> const tables(num_marked, 0), key_counts(num_marked, 0);
    device_->select_keys(device_batch.keys(nullptr), split.marked.span.first(num_marked),
                         {ids.data(), tables.data(), key_counts.data()});
    auto const keys = batch.keys(size);
    auto const all_ids = ids.all();
    auto const all_tables = tables.all();
    for (std::size_t i = 0; i < num_marked; ++i) {
      auto const key = keys[expected.marked.span[i]];
      ASSERT_EQ(all_ids[i], key.id);
      ASSERT_EQ(all_tables[i], key.table);
    }
  }
}

// count_if_any() gives the number of known keys if any of flags[first], flags[first + kStride], ... is not 0; else 0.
TEST_F(CudaBatchDeviceTest, KeysCountIfAnyFlagIsSet) {
  DeviceBatch const batch(random_batch(random_, {.size = 10}));
  DeviceArray<std::uint32_t> const known(1, 6);
  constexpr std::size_t kStride = 3, kNumRanks = 400;
  // Index of the flag that is set; the last index is beyond all flags, so none is set.
  for (std::size_t const set : {std::size_t{0}, std::size_t{1}, std::size_t{2}, 3 * kNumRanks - 2, 3 * kNumRanks}) {
    std::vector<float> flags(kStride * kNumRanks, 0);
    if (set < flags.size()) flags[set] = 0.5F;
    DeviceArray<float> const on_device(flags);
    for (std::size_t const first : {0, 1, 2}) {
      bool const is_any = set < flags.size() && set % kStride == first;
      auto const count = [&](std::uint32_t const* num_known) {
        return download(device_->count_if_any(batch.keys(num_known), on_device.span(), first, kStride)).at(0);
      };
      EXPECT_EQ(count(nullptr), is_any ? 10 : 0) << set << " " << first;
      EXPECT_EQ(count(known.data()), is_any ? 6 : 0) << set << " " << first;
    }
  }
}

}  // namespace
}  // namespace headway::embedding
