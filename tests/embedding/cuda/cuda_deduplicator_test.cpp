// SPDX-License-Identifier: Apache-2.0

// Deduplication, reordering and routing on a CUDA device, compared with the CPU.
//
// A route is the order of keys by owner rank, with their number per rank. The known keys of a batch are its valid
// prefix, whose length only the device may know (Keys::num_known). A Room is device memory for the unique keys.

#include "deduplicator_fixture.hpp"
#include "headway/base/status.hpp"
#include "headway/embedding/routing.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace headway::embedding {
namespace {

TEST_F(CudaDeduplicatorTest, UniqueKeysAreThoseOfTheCpu) {
  for (std::size_t const size : {0, 1, 31, 1'000, 100'000}) {
    for (std::uint64_t const num_ids : {std::uint64_t{1}, std::uint64_t{5}, size / 3 + 1, std::uint64_t{1} << 60}) {
      for (std::uint32_t const num_tables : {1U, 3U}) {
        // Counts are below this number; 0: the batch has none.
        for (std::uint64_t const end_of_counts : {std::uint64_t{0}, std::uint64_t{10}, std::uint64_t{1} << 32}) {
          SCOPED_TRACE(testing::Message() << size << " keys of " << num_ids << " ids and " << num_tables
                                          << " tables, counts to " << end_of_counts);
          auto const batch = random_batch(
              random_, {.size = size, .num_ids = num_ids, .num_tables = num_tables, .end_of_counts = end_of_counts});
          DeviceBatch const on_device(batch);
          Room const room(on_device.keys());
          deduplicator_->deduplicate(on_device.keys(), room.view());
          expect_same(room.download(size), cpu_->deduplicate(batch.keys()));
        }
      }
    }
  }
}

TEST_F(CudaDeduplicatorTest, CountsOfKeysAddUpAsFarAsTheyFit) {
  HostBatch const batch{.ids = {7, 9, 7, 8, 8, 6, 6}, .counts = {2, 3, 4, 0xffffffff, 9, 0xfffffff0, 0xf}};
  DeviceBatch const on_device(batch);
  Room const room(on_device.keys());
  deduplicator_->deduplicate(on_device.keys(), room.view());
  EXPECT_EQ(room.download(7).counts, (std::vector<std::uint32_t>{6, 3, 0xffffffff, 0xffffffff}));
}

TEST_F(CudaDeduplicatorTest, KeysMayBeTakenAsUnique) {
  for (std::size_t const size : {0, 1, 1'000}) {
    for (std::uint64_t const end_of_counts : {0, 10}) {
      auto const batch =
          random_batch(random_, {.size = size, .num_ids = 10, .num_tables = 3, .end_of_counts = end_of_counts});
      DeviceBatch const on_device(batch);
      Room const room(on_device.keys());
      deduplicator_->from_unique(on_device.keys(), room.view());
      expect_same(room.download(size), from_unique(batch.keys()));
      auto const values = random_integers(random_, size * 4);
      EXPECT_EQ(expand(room, {}, 4, values, values.size()), values);
      EXPECT_EQ(reduce(room, {}, 4, values, values.size()), values);
    }
  }
}

TEST_F(CudaDeduplicatorTest, OnlyTheKnownKeysOfABatchCount) {
  constexpr std::size_t kSize = 5'000, kDim = 4;
  auto const batch = random_batch(random_, {.size = kSize, .num_ids = 900, .num_tables = 2, .end_of_counts = 9});
  DeviceBatch const on_device(batch);
  for (std::uint32_t const num_known : {0U, 1U, 64U, 777U, 4'999U, 5'000U, 6'000U}) {
    SCOPED_TRACE(testing::Message() << num_known << " known");
    DeviceArray<std::uint32_t> const on_device_known(1, num_known);
    std::size_t const known = std::min<std::size_t>(num_known, kSize);  // A larger number means all keys.
    auto const keys = on_device.keys(on_device_known.data());
    Room const room(keys);
    deduplicator_->from_unique(keys, room.view());
    expect_same(room.download(known), from_unique(batch.keys(known)));
    deduplicator_->deduplicate(keys, room.view());
    auto const unique = cpu_->deduplicate(batch.keys(known));
    expect_same(room.download(known), unique);

    // Compare the outputs of known keys and the sums of unique keys. Sums beyond those must not be written.
    auto const of_unique = random_integers(random_, unique.size() * kDim),
               of_keys = random_integers(random_, kSize * kDim);
    std::vector<float> out(known * kDim), sums(of_unique.size());
    cpu_->expand(unique, {}, of_unique, out);
    cpu_->reduce(unique, {}, std::span(of_keys).first(known * kDim), sums);
    auto actual = expand(room, {}, kDim, of_unique, kSize * kDim);
    EXPECT_TRUE(std::ranges::equal(std::span(actual).first(out.size()), out));
    actual = reduce(room, {}, kDim, of_keys, kSize * kDim);
    EXPECT_TRUE(std::ranges::equal(std::span(actual).first(sums.size()), sums));
    EXPECT_TRUE(std::ranges::all_of(std::span(actual).subspan(sums.size()), [](float value) { return value == -99; }));
  }
}

TEST_F(CudaDeduplicatorTest, RoutesAreThoseOfTheCpu) {
  for (std::size_t const size : {0, 1, 1'000, 100'000}) {
    auto const batch = random_batch(random_, {.size = size, .num_ids = size + 1, .num_tables = 3});
    DeviceBatch const on_device(batch);
    for (std::uint32_t const num_ranks : {1U, 2U, 7U, 64U, 1'000U, kNumVirtualBuckets}) {
      SCOPED_TRACE(testing::Message() << size << " keys to " << num_ranks << " ranks");
      DeviceArray<std::uint32_t> const order(size, 77);
      DeviceArray<std::int64_t> const counts(num_ranks, 77);  // Its size tells route() the number of ranks.
      auto const expected = route(batch.keys(), num_ranks);
      deduplicator_->route(on_device.keys(), order.span(), counts.span());
      EXPECT_TRUE(order.all() == expected.order);
      EXPECT_TRUE(counts.all() == expected.counts);

      std::size_t const known = size / 3;
      DeviceArray<std::uint32_t> const num_known(1, static_cast<std::uint32_t>(known));
      auto const expected_of_known = route(batch.keys(known), num_ranks);
      deduplicator_->route(on_device.keys(num_known.data()), order.span(), counts.span());
      EXPECT_TRUE(order.first(known) == expected_of_known.order);
      EXPECT_TRUE(counts.all() == expected_of_known.counts);
    }
  }
}

TEST_F(CudaDeduplicatorTest, OrdersOfUniqueKeysAreThoseOfTheCpu) {
  for (std::size_t const size : {0, 1, 2, 1'000, 100'000}) {
    for (std::uint64_t const num_ids : {std::uint64_t{1}, std::uint64_t{size / 3 + 1}, std::uint64_t{1} << 40}) {
      for (std::uint32_t const num_tables : {1U, 3U}) {
        SCOPED_TRACE(testing::Message() << size << " keys of " << num_ids << " ids and " << num_tables << " tables");
        auto const batch =
            random_batch(random_, {.size = size, .num_ids = num_ids, .num_tables = num_tables, .end_of_counts = 10});
        DeviceBatch const on_device(batch);
        Room const room(on_device.keys()), reordered(on_device.keys());
        deduplicator_->deduplicate(on_device.keys(), room.view());
        auto const unique = cpu_->deduplicate(batch.keys());
        std::vector<std::uint32_t> order(unique.size());
        std::iota(order.begin(), order.end(), 0);
        std::shuffle(order.begin(), order.end(), random_);
        DeviceArray<std::uint32_t> const order_on_device(order);
        deduplicator_->reorder(room.view(), order_on_device.span(), reordered.view());
        expect_same(reordered.download(size), reorder(unique, order));
      }
    }
  }
}

TEST_F(CudaDeduplicatorTest, UniqueKeysAreBroughtIntoTheOrderOfTheirOwnersBeforeTheHostKnowsTheirNumber) {
  constexpr std::size_t kSize = 5'000;
  auto const batch = random_batch(random_, {.size = kSize, .num_ids = 900, .num_tables = 2, .end_of_counts = 9});
  DeviceBatch const on_device(batch);
  for (std::uint32_t const num_known : {0U, 1U, 777U, 5'000U}) {
    SCOPED_TRACE(testing::Message() << num_known << " known");
    DeviceArray<std::uint32_t> const on_device_known(1, num_known);
    auto const keys = on_device.keys(on_device_known.data());
    Room const room(keys), reordered(keys);
    deduplicator_->deduplicate(keys, room.view());
    DeviceArray<std::uint32_t> const order(kSize, 77);
    DeviceArray<std::int64_t> const counts(7, 77);
    deduplicator_->route(room.view().keys(), order.span(), counts.span());
    deduplicator_->reorder(room.view(), order.span(), reordered.view());
    auto const unique = cpu_->deduplicate(batch.keys(num_known));
    expect_same(reordered.download(num_known), reorder(unique, route(unique.keys(), 7).order));
  }
}

TEST_F(CudaDeduplicatorTest, SizesThatDoNotAgreeAreRefused) {
  HostBatch const batch{.ids = {7, 9, 7}};
  DeviceBatch const on_device(batch);
  auto const keys = on_device.keys();
  Room const room(keys);
  DeviceArray<std::uint32_t> const ones(1, 1);
  auto with_one_table = keys, with_one_count = keys, of_other_table = keys;
  with_one_table.tables = ones.span();
  with_one_count.counts = ones.span();
  of_other_table.table = 4;
  for (auto const& wrong : {with_one_table, with_one_count, of_other_table}) {
    EXPECT_THROW(deduplicator_->deduplicate(wrong, room.view()), base::UsageError);
    EXPECT_THROW(deduplicator_->from_unique(wrong, room.view()), base::UsageError);
  }
  auto without_size = room.view(), with_few_offsets = room.view();
  without_size.size = nullptr;
  with_few_offsets.csr_offsets = with_few_offsets.csr_offsets.first(3);
  for (auto const& wrong : {without_size, with_few_offsets}) {
    EXPECT_THROW(deduplicator_->deduplicate(keys, wrong), base::UsageError);
  }

  deduplicator_->deduplicate(keys, room.view());
  DeviceBatch const of_others({.ids = {7, 9}});
  Room const smaller(of_others.keys());
  EXPECT_THROW(deduplicator_->reorder(room.view(), ones.span(), smaller.view()), base::UsageError);
  EXPECT_THROW(deduplicator_->reorder(without_size, ones.span(), room.view()), base::UsageError);
  DeviceArray<float> const values(6, 1), sums(4, 1);
  auto const reduce = [&](std::size_t dim, std::size_t num_values, std::size_t num_sums) {
    deduplicator_->reduce(room.view(), {}, dim, values.span().first(num_values), sums.span().first(num_sums));
  };
  reduce(2, 6, 4);
  EXPECT_EQ(sums.all(), (std::vector<float>{2, 2, 1, 1}));
  EXPECT_THROW(reduce(2, 5, 4), base::UsageError);
  EXPECT_THROW(reduce(2, 6, 3), base::UsageError);
  EXPECT_THROW(reduce(1, 6, 4), base::UsageError);
  EXPECT_THROW(reduce(0, 0, 0), base::UsageError);
  EXPECT_THROW(deduplicator_->expand(room.view(), {.weights = sums.span()}, 2, sums.span(), values.span()),
               base::UsageError);
  EXPECT_THROW(deduplicator_->expand(room.view(), {}, 2, sums.span().first(3), values.span()), base::UsageError);

  // There may be as many ranks as virtual buckets, ranges of key hashes by which ranks divide keys.
  DeviceArray<std::int64_t> const counts(kNumVirtualBuckets + 1, 0);
  DeviceArray<std::uint32_t> const order(3, 0);
  EXPECT_THROW(deduplicator_->route(keys, order.span(), {}), base::UsageError);
  EXPECT_THROW(deduplicator_->route(keys, order.span(), counts.span()), base::UsageError);
  EXPECT_THROW(deduplicator_->route(keys, order.span().first(2), counts.span().first(1)), base::UsageError);
}

}  // namespace
}  // namespace headway::embedding
