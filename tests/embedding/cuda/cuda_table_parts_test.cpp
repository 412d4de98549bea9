// SPDX-License-Identifier: Apache-2.0

// A large CUDA table spreads an eviction over 16 steps, one part of its keys (chosen by hash) in each.
//
// begin_step(step, oldest_in_use) evicts rows above high_water down to low_water. Rows looked up in step oldest_in_use
// or later are in use and stay.

#include "headway/embedding/routing.hpp"
#include "table_fixture.hpp"
#include "table_from_host.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace headway::embedding {
namespace {

constexpr std::size_t kNumParts = 16, kHighWater = std::size_t{1} << 20, kLowWater = kHighWater - kHighWater / 8;
constexpr std::size_t kKeysPerStep = kHighWater / 16;
constexpr std::uint32_t kNumFilling = 18;  // 18 steps of kKeysPerStep new keys: two steps' keys too many.

class CudaTablePartsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_cuda_device()) GTEST_SKIP() << "this host has no CUDA device";
    table_ = std::make_unique<TableFromHost>(options());
    for (std::uint32_t step = 0; step < kNumFilling; ++step) insert(step);
  }

  static TableOptions options() {
    auto options = options_of(2 * kHighWater);
    options.eviction = EvictionPolicy::kLeastRecentlyUsed;
    options.high_water = kHighWater;
    options.low_water = kLowWater;
    return options;
  }
  /// Inserts the keys of a step, without begin_step(): no eviction runs before the test begins.
  void insert(std::uint32_t step) {
    table_->resume_step(step, step);
    batch_from(step * kKeysPerStep, kKeysPerStep).find_or_insert(*table_);
  }
  /// Number of keys of a step that still have a row.
  std::size_t num_left_of(std::uint32_t step) {
    auto batch = batch_from(step * kKeysPerStep, kKeysPerStep);
    batch.find(*table_);
    return static_cast<std::size_t>(std::ranges::count(batch.statuses, KeyStatus::kFound));
  }

  std::unique_ptr<TableFromHost> table_;
};

TEST_F(CudaTablePartsTest, EachStepTakesAboutASixteenth) {
  std::size_t const surplus = kNumFilling * kKeysPerStep - kLowWater;
  std::size_t before = 0;
  for (std::uint32_t part = 0; part < kNumParts; ++part) {
    std::uint32_t const step = kNumFilling + part;
    table_->begin_step(step, step);
    auto const evicted = table_->statistics().evicted;
    EXPECT_GT(evicted - before, surplus / kNumParts / 2) << "part " << part;
    EXPECT_LT(evicted - before, surplus / kNumParts * 2) << "part " << part;
    before = evicted;
  }
  auto const num_rows = table_->size().rows;
  EXPECT_GE(num_rows, kLowWater);
  EXPECT_LT(num_rows, kLowWater + kLowWater / 100);
  table_->begin_step(kNumFilling + kNumParts, kNumFilling + kNumParts);
  EXPECT_EQ(table_->statistics().evicted, before) << "below high_water nothing more goes";
}

TEST_F(CudaTablePartsTest, TheLeastRecentlyUsedRowsOfEachPartGo) {
  for (std::uint32_t part = 0; part < kNumParts; ++part) {
    std::uint32_t const step = kNumFilling + part;
    table_->begin_step(step, step);
  }
  // Four steps' keys had to go. Parts differ by chance, so the fourth may keep a few keys and the fifth may lose some.
  for (std::uint32_t step = 0; step < 3; ++step) EXPECT_EQ(num_left_of(step), 0U) << "step " << step;
  EXPECT_LT(num_left_of(3), kKeysPerStep / 4);
  EXPECT_GT(num_left_of(4), kKeysPerStep / 4 * 3);
  for (std::uint32_t step = 5; step < kNumFilling; ++step) EXPECT_EQ(num_left_of(step), kKeysPerStep) << step;
}

TEST_F(CudaTablePartsTest, RowsInUseStay) {
  for (std::uint32_t part = 0; part < kNumParts; ++part) table_->begin_step(kNumFilling + part, 1);
  EXPECT_EQ(num_left_of(0), 0U) << "only rows of step 0 are not in use";
  for (std::uint32_t step = 1; step < kNumFilling; ++step) EXPECT_EQ(num_left_of(step), kKeysPerStep) << step;
}

TEST_F(CudaTablePartsTest, RowsBeyondMaxRowsGoAtOnce) {
  Records const records = table_->list(0, kNumVirtualBuckets);
  auto options = CudaTablePartsTest::options();
  options.max_rows = kHighWater;
  TableFromHost table(options);
  std::vector<KeyStatus> statuses(records.ids.size());
  table.import_records(table_->export_records({.ids = records.ids}), statuses);
  ASSERT_GT(table.size().rows, kHighWater);
  table.begin_step(kNumFilling, kNumFilling);
  EXPECT_EQ(table.size().rows, kLowWater);
}

}  // namespace
}  // namespace headway::embedding
