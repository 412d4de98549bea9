// SPDX-License-Identifier: Apache-2.0

// The BatchDevice in host memory: the memory and kernels that a ShardedTable uses for its batches.
//
// A Block is a shared array in the memory of the device. A key is an id with its table's number. For an exchange,
// encode() turns a key into two 64-bit words: the id, then the table in the lower half and the lookup count in the
// upper half. decode() must give back all bits, and arrays of several lookups must be concatenated in order.

#include "headway/embedding/batch_device.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

namespace headway::embedding {
namespace {

class HostBatchDeviceTest : public testing::Test {
 protected:
  std::shared_ptr<BatchDevice> device_ = make_host_batch_device();
};

TEST_F(HostBatchDeviceTest, AFreedBlockIsUsedAgainForOneOfItsSize) {
  void const* first = nullptr;
  {
    auto const block = device_->block<float>(300'000);
    first = block.data();
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first) % 64, 0U);
  }
  // Sizes are rounded up, so 299,990 elements are of the same size as 300,000.
  auto const same = device_->block<float>(299'990), other = device_->block<float>(300'000);
  EXPECT_EQ(same.data(), first);
  EXPECT_NE(other.data(), first);
}

TEST_F(HostBatchDeviceTest, BlocksMayOutliveTheirDevice) {
  auto block = device_->block<float>(1'000);
  device_.reset();
  std::ranges::fill(block.span, 1.0F);
  block = {};
}

TEST_F(HostBatchDeviceTest, KeysAreDecodedAsTheyWereEncoded) {
  std::mt19937_64 random(5);
  for (std::size_t const count : {0, 1, 2, 50}) {
    std::vector<std::uint64_t> ids(count), words(2 * count), decoded_ids(count);
    std::vector<std::uint32_t> tables(count), counts(count), decoded_tables(count), decoded_counts(count);
    std::ranges::generate(ids, random);
    std::ranges::generate(tables, [&] { return static_cast<std::uint32_t>(random()); });
    std::ranges::generate(counts, [&] { return static_cast<std::uint32_t>(random()); });
    device_->encode(
        std::vector{EncodePiece{.keys = {.ids = ids, .tables = tables, .counts = counts}, .words = words.data()}});
    for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(words[2 * i], ids[i]);
    device_->decode(std::vector{DecodePiece{.words = words.data(),
                                            .num_keys = count,
                                            .ids = decoded_ids.data(),
                                            .tables = decoded_tables.data(),
                                            .counts = decoded_counts.data()}});
    EXPECT_EQ(decoded_ids, ids);
    EXPECT_EQ(decoded_tables, tables);
    EXPECT_EQ(decoded_counts, counts);
  }
}

TEST_F(HostBatchDeviceTest, KeysOfOneTableHaveItsNumber) {
  std::vector<std::uint64_t> const ids{5, ~std::uint64_t{0}};
  std::vector<std::uint32_t> const counts{1, 7};
  std::vector<std::uint64_t> words(4);
  device_->encode(
      std::vector{EncodePiece{.keys = {.ids = ids, .table = 0xffffffff, .counts = counts}, .words = words.data()}});
  EXPECT_EQ(words, (std::vector<std::uint64_t>{5, 0x1ffffffff, ~std::uint64_t{0}, 0x7ffffffff}));
}

TEST_F(HostBatchDeviceTest, TheKeysOfATableAreSelectedFromSeveralLookups) {
  constexpr std::size_t kDim = 2;
  constexpr std::uint32_t kTable = 1;
  std::vector<std::uint64_t> const first{7, 8}, second{9};
  std::vector<std::uint32_t> const tables{1, 2};
  std::vector<float> const values{1, 2, 3, 4}, more{5, 6};
  auto const all =
      device_->concatenate(std::vector<KeyValues>{{.keys = {.ids = first, .tables = tables}, .values = values},
                                                  {.keys = {.ids = second, .table = kTable}, .values = more}},
                           kDim);
  EXPECT_TRUE(std::ranges::equal(all.ids.span, std::vector<std::uint64_t>{7, 8, 9}));
  EXPECT_TRUE(std::ranges::equal(all.tables.span, std::vector<std::uint32_t>{1, 2, 1}));
  std::vector<RowId> const rows{RowId{3}, RowId{4}, RowId::kNone};
  auto const of_table = device_->select_table({.keys = all.keys(), .values = all.values.span}, rows, kDim, kTable);
  EXPECT_TRUE(std::ranges::equal(of_table.ids.span, std::vector<std::uint64_t>{7, 9}));
  EXPECT_TRUE(std::ranges::equal(of_table.values.span, std::vector<float>{1, 2, 5, 6}));
  EXPECT_TRUE(std::ranges::equal(of_table.rows.span, std::vector{RowId{3}, RowId::kNone}));
}

TEST_F(HostBatchDeviceTest, PositionsAreMarkedListedAndCountedBySegment) {
  std::vector<std::uint32_t> const indices{0, 1, 0, 2, 1};  // Keys 0 and 1 have positions before and after the second.
  std::vector<float> marks(5);
  device_->mark_shared(indices, 2, marks);
  EXPECT_EQ(marks, (std::vector<float>{1, 1, 1, 0, 1}));
  marks[1] = -1;
  auto const split = device_->split(marks, std::vector<std::size_t>{3, 0, 2});
  EXPECT_TRUE(std::ranges::equal(split.counts.span, std::vector<std::int64_t>{2, 0, 1, 0, 0, 1}));
  EXPECT_TRUE(std::ranges::equal(split.marked.span.first(3), std::vector<std::uint32_t>{0, 2, 4}));
  EXPECT_EQ(split.others.span[0], 3);
  std::vector<float> const rows{1, 2, 3, 4, 5, 6};
  std::vector<std::uint32_t> const positions{2, 0};
  std::vector<float> chosen(4), back(6);
  device_->gather_rows(rows, 2, positions, chosen);
  EXPECT_EQ(chosen, (std::vector<float>{5, 6, 1, 2}));
  device_->scatter_rows(chosen, 2, positions, back);
  EXPECT_EQ(back, (std::vector<float>{1, 2, 0, 0, 5, 6}));
  std::vector<float> absent(2);
  device_->mark_absent(std::vector{RowId{4}, RowId::kNone}, absent);
  EXPECT_EQ(absent, (std::vector<float>{0, 1}));
}

TEST_F(HostBatchDeviceTest, KeysWithoutARowWeighNothing) {
  // `rows` is by unique key; `inverse_indices` has the unique key of each position of the batch.
  std::vector<RowId> const rows{RowId::kNone, RowId{5}};
  std::vector<std::uint32_t> const inverse_indices{1, 0, 1};
  std::vector<float> out(3), values{1, 2, 3, 4};
  device_->mask_weights(rows, inverse_indices, std::vector<float>{2, 3, 4}, out);
  EXPECT_EQ(out, (std::vector<float>{2, 0, 4}));
  device_->mask_weights(rows, inverse_indices, {}, out);
  EXPECT_EQ(out, (std::vector<float>{1, 0, 1}));
  device_->mask_rows(rows, 2, values);
  EXPECT_EQ(values, (std::vector<float>{0, 0, 3, 4}));
}

}  // namespace
}  // namespace headway::embedding
