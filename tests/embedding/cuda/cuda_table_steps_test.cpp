// SPDX-License-Identifier: Apache-2.0

// Steps of a CUDA table near max_rows, enqueued while the device is far behind the host.

#include "device_array.hpp"
#include "headway/embedding/cuda_table.hpp"
#include "headway/embedding/routing.hpp"
#include "headway/embedding/table.hpp"

#include <gtest/gtest.h>

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <thread>
#include <utility>
#include <vector>

namespace headway::embedding {
namespace {

/// A CUDA stream that the host can block: work enqueued after hold() starts after release().
class HeldStream {
 public:
  HeldStream() {
    base::check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  }
  HeldStream(HeldStream const&) = delete;
  HeldStream& operator=(HeldStream const&) = delete;
  ~HeldStream() {
    release();
    static_cast<void>(cudaStreamSynchronize(stream_));
    static_cast<void>(cudaStreamDestroy(stream_));
  }

  [[nodiscard]] CudaPlace place() const {
    return {.device = 0, .current_stream = [stream = stream_] { return stream; }};
  }
  void hold() {
    is_released_ = false;
    base::check_cuda(cudaLaunchHostFunc(
                         stream_, [](void* self) { static_cast<HeldStream*>(self)->wait_until_released(); }, this),
                     "cudaLaunchHostFunc");
  }
  void release() { is_released_ = true; }
  void synchronize() { base::check_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }
  /// Whether a hold ended by its timeout of 30 s: the host waited for the device instead of calling release().
  [[nodiscard]] bool was_waited_for() const { return was_waited_for_; }

 private:
  void wait_until_released() {
    auto const end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!is_released_) {
      if (std::chrono::steady_clock::now() > end) {
        was_waited_for_ = true;
        return;
      }
      std::this_thread::yield();
    }
  }

  cudaStream_t stream_ = nullptr;
  std::atomic<bool> is_released_ = true, was_waited_for_ = false;
};

/// Keys of a step in host and device memory, with the table's results on the device.
struct Step {
  Step(std::vector<std::uint64_t> ids, std::uint32_t num_known, bool are_unique)
      : on_host(std::move(ids)),
        known(num_known),
        unique(are_unique),
        device_ids(on_host),
        device_known(1, num_known),
        rows(on_host.size(), RowId::kNone),
        statuses(on_host.size(), KeyStatus::kNoRoom) {}

  [[nodiscard]] Keys known_on_host() const { return {.ids = std::span(on_host).first(known), .are_unique = unique}; }
  [[nodiscard]] Keys on_device() const {
    return {.ids = device_ids.span(), .are_unique = unique, .num_known = device_known.data()};
  }

  std::vector<std::uint64_t> on_host;
  std::uint32_t known;  ///< Number of valid keys; the table reads it on the device.
  bool unique;
  DeviceArray<std::uint64_t> device_ids;
  DeviceArray<std::uint32_t> device_known;
  DeviceArray<RowId> rows;
  DeviceArray<KeyStatus> statuses;
};

/// Unique keys: half of the keys of a step were in the step before. Else: random ids, of which some repeat.
std::vector<std::unique_ptr<Step>> make_steps(std::size_t num_steps, std::size_t size, bool are_unique) {
  std::mt19937_64 random(size);
  std::vector<std::unique_ptr<Step>> steps;
  for (std::size_t step = 0; step < num_steps; ++step) {
    std::vector<std::uint64_t> ids(size);
    for (std::size_t i = 0; i < size; ++i) ids[i] = are_unique ? step * size / 2 + i : random() % (8 * size);
    if (are_unique) std::ranges::shuffle(ids, random);
    auto const num_known = static_cast<std::uint32_t>(size - random() % (size / 2));
    steps.push_back(std::make_unique<Step>(std::move(ids), num_known, are_unique));
  }
  return steps;
}

class CudaTableStepsTest : public testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "this host has no CUDA device";
  }
};

/// Starts step `number`, which may evict rows that were not looked up in the step before, and inserts the keys of
/// `step`.
void enqueue(Table& table, Step const& step, std::uint32_t number) {
  table.begin_step(number, number - 1);
  table.find_or_insert(step.on_device(), step.rows.span(), step.statuses.span());
}

TEST_F(CudaTableStepsTest, WhatIsEnqueuedWithoutAWaitIsWhatTheCpuDoes) {
  for (auto const policy :
       {EvictionPolicy::kNone, EvictionPolicy::kLeastRecentlyUsed, EvictionPolicy::kLeastFrequentlyUsed}) {
    for (std::uint32_t const min_count : {1U, 2U}) {
      for (bool const are_unique : {false, true}) {
        SCOPED_TRACE(testing::Message() << "policy " << static_cast<int>(policy) << " min_count " << min_count
                                        << " unique " << are_unique);
        TableOptions const options{.dim = 4,
                                   .max_rows = 3'000,
                                   .eviction = policy,
                                   .high_water = 2'800,
                                   .low_water = 2'000,
                                   .min_count = min_count,
                                   .max_pending = 4'000};
        auto const steps = make_steps(60, 1'000, are_unique);
        auto const on_host = make_cpu_table(options);
        HeldStream stream;
        auto const on_device = make_cuda_table(options, stream.place());
        std::uint32_t number = 0;
        for (auto const& step : steps) enqueue(*on_device, *step, ++number);
        number = 0;
        for (auto const& step : steps) {
          std::vector<RowId> rows(step->known);
          std::vector<KeyStatus> statuses(step->known);
          on_host->begin_step(number + 1, number);
          on_host->find_or_insert(step->known_on_host(), rows, statuses);
          ++number;
          stream.synchronize();
          auto const actual = step->statuses.all();
          ASSERT_TRUE(std::ranges::equal(std::span(actual).first(step->known), statuses)) << "step " << number;
          ASSERT_TRUE(std::ranges::all_of(std::span(actual).subspan(step->known),
                                          [](KeyStatus status) { return status == KeyStatus::kAbsent; }));
        }
        auto const expected = on_host->list(0, kNumVirtualBuckets), listed = on_device->list(0, kNumVirtualBuckets);
        EXPECT_EQ(listed.ids, expected.ids);
        auto const counts = on_device->statistics(), expected_counts = on_host->statistics();
        EXPECT_EQ(counts.inserted, expected_counts.inserted);
        EXPECT_EQ(counts.evicted, expected_counts.evicted);
        EXPECT_EQ(counts.refused, expected_counts.refused);
        EXPECT_EQ(counts.forgotten, expected_counts.forgotten);
        EXPECT_EQ(on_device->size().rows, on_host->size().rows);
        EXPECT_EQ(on_device->size().pending, on_host->size().pending);
      }
    }
  }
}

TEST_F(CudaTableStepsTest, TheHostDoesNotWaitForTheDeviceInStepsAtTheLimit) {
  for (auto const policy : {EvictionPolicy::kNone, EvictionPolicy::kLeastRecentlyUsed}) {
    for (bool const are_unique : {false, true}) {
      TableOptions const options{
          .dim = 4, .max_rows = 20'000, .eviction = policy, .high_water = 18'000, .low_water = 17'000};
      // The first step makes the stripes (64 parts of the key index, each grows by itself) large enough for all keys
      // that come while the device is held.
      auto const first = make_steps(1, 200'000, are_unique), steps = make_steps(8, 5'000, are_unique);
      HeldStream stream;
      auto const table = make_cuda_table(options, stream.place());
      std::uint32_t number = 0;
      enqueue(*table, *first.front(), ++number);
      for (std::size_t i = 0; i < 4; ++i) enqueue(*table, *steps[i], ++number);
      static_cast<void>(table->size());
      stream.hold();
      for (std::size_t i = 4; i < 8; ++i) enqueue(*table, *steps[i], ++number);
      stream.release();
      auto const counts = table->statistics();
      EXPECT_FALSE(stream.was_waited_for()) << static_cast<int>(policy) << are_unique;
      EXPECT_EQ(counts.evicted > 0, policy != EvictionPolicy::kNone);
    }
  }
}

// A table with a high_water of 2^20 rows or more spreads an eviction over 16 steps, one part of its keys in each.
TEST_F(CudaTableStepsTest, ALargeTableEvictsInPartsThoughTheHostKnowsTheRowsLate) {
  constexpr std::size_t kHighWater = std::size_t{1} << 20, kLowWater = kHighWater - kHighWater / 8, kBatch = 64;
  constexpr std::uint32_t kNumParts = 16;
  TableOptions const options{.dim = 1,
                             .max_rows = 2 * kHighWater,
                             .eviction = EvictionPolicy::kLeastRecentlyUsed,
                             .high_water = kHighWater,
                             .low_water = kLowWater};
  auto const make_step = [](std::uint64_t first, std::size_t size) {
    std::vector<std::uint64_t> ids(size);
    std::ranges::generate(ids, [&first] { return first++; });
    return Step(std::move(ids), static_cast<std::uint32_t>(size), true);
  };
  HeldStream stream;
  auto const table = make_cuda_table(options, stream.place());
  auto const filling = make_step(0, kHighWater - kBatch / 2), known = make_step(0, kBatch),
             added = make_step(kHighWater, kBatch);
  std::uint32_t number = 0;
  enqueue(*table, filling, ++number);
  static_cast<void>(table->size());  // From here on the host knows the number of rows.
  stream.hold();
  // The table has the keys of `known`, but the host cannot tell, so it must reckon with too many rows. The device has
  // too many only after the keys of `added`.
  enqueue(*table, known, ++number);
  table->begin_step(number + 1, number);
  ++number;
  enqueue(*table, added, ++number);
  for (std::uint32_t part = 0; part < kNumParts; ++part, ++number) table->begin_step(number + 1, number);
  stream.release();
  EXPECT_FALSE(stream.was_waited_for());
  EXPECT_GE(table->size().rows, kLowWater);
  EXPECT_LT(table->size().rows, kLowWater + kLowWater / 100);
}

}  // namespace
}  // namespace headway::embedding
