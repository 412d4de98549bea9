// SPDX-License-Identifier: Apache-2.0

// Joining features on a CUDA device, compared with the CPU.
//
// A feature is jagged: lists of ids of one table, one list per sample. join_features() concatenates the ids of all
// features, with the table of each id, bag offsets and weights. A pooled list is a bag; else each id is one.

#include "device_array.hpp"
#include "headway/embedding/features.hpp"

#include <gtest/gtest.h>

#include <cuda_runtime_api.h>

#include <cstdint>
#include <list>
#include <random>
#include <string>
#include <vector>

namespace headway::embedding {
namespace {

template <class T>
Integers integers_of(std::span<T> values) {
  return {.data = values.data(), .size = values.size(), .are_wide = sizeof(T) == 8};
}

/// The same features in host memory and in device memory.
class Batch {
 public:
  /// Adds a feature with random ids. @param are_wide are ids and lengths of 64 bits? Else of 32
  void add(Pooling pooling, bool are_wide, bool has_weights, std::vector<std::int64_t> const& lengths,
           std::mt19937_64& random) {
    std::size_t num_ids = 0;
    for (auto const length : lengths) num_ids += static_cast<std::size_t>(length);
    std::vector<std::int64_t> ids(num_ids);
    std::vector<float> weights(has_weights ? num_ids : 0);
    for (auto& id : ids) id = static_cast<std::int64_t>(random());
    for (auto& weight : weights) weight = static_cast<float>(random() % 100) / 8;
    Feature feature{.name = "some", .table = static_cast<std::uint32_t>(random()), .pooling = pooling};
    on_host.push_back(feature);
    on_device.push_back(feature);
    if (are_wide) {
      add_integers(&Feature::ids, ids);
      add_integers(&Feature::lengths, lengths);
    } else {
      add_integers(&Feature::ids, std::vector<std::int32_t>(ids.begin(), ids.end()));
      add_integers(&Feature::lengths, std::vector<std::int32_t>(lengths.begin(), lengths.end()));
    }
    on_host.back().weights = host_floats_.emplace_back(weights);
    on_device.back().weights = device_floats_.emplace_back(weights).span();
  }

  std::vector<Feature> on_host, on_device;

 private:
  template <class T>
  void add_integers(Integers Feature::*member, std::vector<T> const& values) {
    if constexpr (sizeof(T) == 8) {
      on_host.back().*member = integers_of(std::span(host_wide_.emplace_back(values)));
      on_device.back().*member = integers_of(device_wide_.emplace_back(values).span());
    } else {
      on_host.back().*member = integers_of(std::span(host_narrow_.emplace_back(values)));
      on_device.back().*member = integers_of(device_narrow_.emplace_back(values).span());
    }
  }

  std::list<std::vector<std::int64_t>> host_wide_;
  std::list<std::vector<std::int32_t>> host_narrow_;
  std::list<std::vector<float>> host_floats_;
  std::list<DeviceArray<std::int64_t>> device_wide_;
  std::list<DeviceArray<std::int32_t>> device_narrow_;
  std::list<DeviceArray<float>> device_floats_;
};

void expect_same(Batch const& batch) {
  auto const sizes = sizes_of(batch.on_host);
  std::size_t const num_offsets = sizes.has_bags ? sizes.bags + 1 : 0, num_weights = sizes.has_weights ? sizes.ids : 0;
  std::vector<std::uint64_t> ids(sizes.ids);
  std::vector<std::uint32_t> tables(sizes.ids);
  std::vector<std::int64_t> offsets(num_offsets);
  std::vector<float> weights(num_weights);
  join_features(batch.on_host, {.ids = ids, .tables = tables, .offsets = offsets, .weights = weights});
  DeviceArray<std::uint64_t> const device_ids(sizes.ids, 0);
  DeviceArray<std::uint32_t> const device_tables(sizes.ids, 0);
  DeviceArray<std::int64_t> const device_offsets(num_offsets, 0);
  DeviceArray<float> const device_weights(num_weights, 0);
  join_features(batch.on_device,
                {.ids = device_ids.span(),
                 .tables = device_tables.span(),
                 .offsets = device_offsets.span(),
                 .weights = device_weights.span()},
                CudaPlace{});
  EXPECT_EQ(device_ids.all(), ids);
  EXPECT_EQ(device_tables.all(), tables);
  EXPECT_EQ(device_offsets.all(), offsets);
  EXPECT_EQ(device_weights.all(), weights);
}

class JoinedFeaturesOnCuda : public testing::Test {
 protected:
  void SetUp() override {
    int num_devices = 0;
    if (cudaGetDeviceCount(&num_devices) != cudaSuccess || num_devices == 0) GTEST_SKIP() << "there is no CUDA device";
  }

  std::vector<std::int64_t> draw_lengths(std::size_t count, std::int64_t most) {
    std::vector<std::int64_t> lengths(count);
    for (auto& length : lengths) length = static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(most + 1));
    return lengths;
  }

  std::mt19937_64 random_{1};
};

TEST_F(JoinedFeaturesOnCuda, AreThoseOfTheCpu) {
  for (Pooling const other : {Pooling::kNone, Pooling::kSum, Pooling::kMean}) {
    for (bool const have_weights : {false, true}) {
      Batch batch;
      batch.add(Pooling::kSum, true, have_weights, draw_lengths(1000, 7), random_);
      batch.add(other, false, false, draw_lengths(300, 1), random_);
      batch.add(other, true, have_weights, {}, random_);
      batch.add(Pooling::kNone, true, false, draw_lengths(5, 0), random_);
      batch.add(other, true, false, draw_lengths(4097, 30), random_);
      expect_same(batch);
    }
  }
}

TEST_F(JoinedFeaturesOnCuda, MayBeManyOrPooledAlikeOrNotAtAll) {
  for (Pooling const pooling : {Pooling::kNone, Pooling::kSum, Pooling::kMean}) {
    Batch batch;
    for (int i = 0; i < 300; ++i) batch.add(pooling, i % 2 == 0, false, draw_lengths(10, 3), random_);
    expect_same(batch);
  }
}

// The number of lists equals that of ids, although lists are not of one id each.
TEST_F(JoinedFeaturesOnCuda, MayHaveAListForEachIdByChance) {
  Batch batch;
  batch.add(Pooling::kNone, true, false, {2, 0}, random_);
  batch.add(Pooling::kSum, true, false, {2, 1}, random_);
  expect_same(batch);
}

TEST_F(JoinedFeaturesOnCuda, MayBeEmpty) {
  Batch batch;
  batch.add(Pooling::kMean, true, false, {}, random_);
  expect_same(batch);
}

}  // namespace
}  // namespace headway::embedding
