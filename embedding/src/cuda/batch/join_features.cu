// SPDX-License-Identifier: Apache-2.0

// Concatenates the jagged features of a batch on the GPU (features.hpp): ids, tables, bag offsets and weights.
//
// A list is the ids of one sample in one feature. A pooled list is a bag; without pooling each id is a bag.
// Prefix sums over list lengths and bag lengths give the offsets. One thread per id then finds its feature by binary
// search, and copies id, table and weight. Example: features of 3 and 2 ids have first_id 0 and 3, so thread 4 copies
// the second id of the second feature.
//
// Invariants: the host knows how many ids and lists a feature has, but not the lengths. So first_id, first_list and
//  first_bag come from the host, offsets from the device, and ExpectFitting compares the two.
// Complexity: O(ids + lists), with a binary search over the features per id and over the feature's lists per weight.
// The number of kernels does not depend on the number of features.

#include "cuda/runtime/device_buffer.hpp"
#include "cuda/runtime/launch.cuh"
#include "expect_batch.hpp"
#include "headway/base/cuda_check.hpp"
#include "headway/base/status.hpp"
#include "headway/embedding/features.hpp"

#include <assert.h>
#include <cub/device/device_scan.cuh>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>

#include <algorithm>
#include <vector>

namespace headway::embedding {

namespace {

/// A feature, and the index of its first id, list and bag in the concatenation.
struct FeatureView {
  Integers ids, lengths;
  float const* weights;  ///< nullptr: 1.
  std::uint32_t table;
  Pooling pooling;
  std::uint32_t first_id, first_list, first_bag;
};

/// The features of a batch, and a sentinel whose first id, list and bag are the totals.
struct FeaturesView {
  FeatureView const* features;  ///< (count + 1)
  std::uint32_t count;

  /// Feature that id, list or bag `i` belongs to. @param first which of the three `i` is
  [[nodiscard]] __device__ FeatureView const& feature_of(std::uint32_t FeatureView::*first, std::uint32_t i) const {
    std::uint32_t begin = 0, end = count;
    while (end - begin > 1) {
      std::uint32_t const middle = begin + (end - begin) / 2;
      (features[middle].*first <= i ? begin : end) = middle;
    }
    return features[begin];
  }
};

/// Number of ids of a list; 0 for the index after the last list.
struct LengthOfList {
  FeaturesView all;

  __device__ std::int64_t operator()(std::uint32_t list) const {
    if (list >= all.features[all.count].first_list) return 0;
    auto const& feature = all.feature_of(&FeatureView::first_list, list);
    return feature.lengths[list - feature.first_list];
  }
};

/// Number of ids of a bag; 0 for the index after the last bag.
struct LengthOfBag {
  FeaturesView all;

  __device__ std::int64_t operator()(std::uint32_t bag) const {
    if (bag >= all.features[all.count].first_bag) return 0;
    auto const& feature = all.feature_of(&FeatureView::first_bag, bag);
    return feature.pooling == Pooling::kNone ? 1 : feature.lengths[bag - feature.first_bag];
  }
};

/// Writes (count + 1) offsets: the exclusive prefix sum of `length`.
template <class Length>
void find_offsets_async(Length const& length, std::size_t count, std::int64_t* offsets, cudaStream_t stream) {
  auto const lengths = thrust::make_transform_iterator(thrust::counting_iterator<std::uint32_t>(0), length);
  run_with_scratch("cub::DeviceScan", stream, [&](void* scratch, std::size_t& num_bytes) {
    return cub::DeviceScan::ExclusiveSum(scratch, num_bytes, lengths, offsets, static_cast<std::uint32_t>(count + 1),
                                         stream);
  });
}

/// Asserts that lengths are not negative, and that those of each feature add up to its number of ids.
struct ExpectFitting {
  FeaturesView all;
  std::int64_t const* offsets;

  __device__ void operator()(std::uint64_t i) const {
    bool is_good = true;
    if (i < all.features[all.count].first_list) is_good = offsets[i] <= offsets[i + 1];
    if (i <= all.count) is_good &= offsets[all.features[i].first_list] == all.features[i].first_id;
    if (!is_good) {
      __assert_fail("lengths of features are from 0 and add up to the number of their values", __FILE__, __LINE__,
                    "join_features");
    }
  }
};

/// Writes ids and tables.
struct JoinIds {
  FeaturesView all;
  ExpectFitting expect_fitting;  ///< Checks lists and features; the kernel has a thread for each of those too.
  std::uint64_t* ids;
  std::uint32_t* tables;

  __device__ void operator()(std::uint64_t i) const {
    expect_fitting(i);
    if (i >= all.features[all.count].first_id) return;
    auto const& feature = all.feature_of(&FeatureView::first_id, static_cast<std::uint32_t>(i));
    ids[i] = static_cast<std::uint64_t>(feature.ids[i - feature.first_id]);
    tables[i] = feature.table;
  }
};

/// Writes weights. For mean pooling it divides by the length of the id's list, found by binary search in the offsets.
struct JoinWeights {
  FeaturesView all;
  std::int64_t const* offsets;
  float* weights;

  __device__ void operator()(std::uint64_t i) const {
    auto const& feature = all.feature_of(&FeatureView::first_id, static_cast<std::uint32_t>(i));
    float const weight = feature.weights == nullptr ? 1 : feature.weights[i - feature.first_id];
    weights[i] = feature.pooling == Pooling::kMean ? weight * (1 / length_of_list(feature, i)) : weight;
  }
  [[nodiscard]] __device__ float length_of_list(FeatureView const& feature, std::uint64_t id) const {
    std::uint32_t begin = feature.first_list, end = begin + static_cast<std::uint32_t>(feature.lengths.size);
    while (end - begin > 1) {
      std::uint32_t const middle = begin + (end - begin) / 2;
      (offsets[middle] <= static_cast<std::int64_t>(id) ? begin : end) = middle;
    }
    return static_cast<float>(offsets[begin + 1] - offsets[begin]);
  }
};

/// Features with their places in the concatenation, and the sentinel.
std::vector<FeatureView> views_of(std::span<Feature const> features) {
  std::vector<FeatureView> views;
  views.reserve(features.size() + 1);
  FeatureView next{};
  for (auto const& feature : features) {
    auto const first_id = next.first_id, first_list = next.first_list, first_bag = next.first_bag;
    views.push_back({.ids = feature.ids,
                     .lengths = feature.lengths,
                     .weights = feature.weights.empty() ? nullptr : feature.weights.data(),
                     .table = feature.table,
                     .pooling = feature.pooling,
                     .first_id = first_id,
                     .first_list = first_list,
                     .first_bag = first_bag});
    next.first_id = first_id + static_cast<std::uint32_t>(feature.ids.size);
    next.first_list = first_list + static_cast<std::uint32_t>(feature.lengths.size);
    next.first_bag = first_bag + static_cast<std::uint32_t>(feature.num_bags());
  }
  views.push_back(next);
  return views;
}

}  // namespace

void join_features(std::span<Feature const> features, JoinedFeatures const& out, CudaPlace const& place) {
  constexpr std::size_t kEnd = std::size_t{1} << 31;
  auto const sizes = expect_room(features, out);
  base::expects(sizes.ids < kEnd && sizes.lists < kEnd, "a batch on a device has less than 2^31 ids and lists");
  base::DeviceScope const scope(place.device);
  cudaStream_t const stream = place.stream();
  auto const views = views_of(features);
  DeviceBuffer<FeatureView> const on_device(views.size(), stream);
  // `views` is pageable memory: CUDA has copied it when this call returns, so `views` may go, and nothing waits.
  base::check_cuda(cudaMemcpyAsync(on_device.data(), views.data(), views.size() * sizeof(FeatureView),
                                   cudaMemcpyHostToDevice, stream),
                   "cudaMemcpyAsync");
  FeaturesView const all{.features = on_device.data(), .count = static_cast<std::uint32_t>(features.size())};
  // If every feature is pooled, its lists are the bags, and the caller's offsets serve for both. Otherwise the lists
  // need offsets of their own, in scratch memory.
  bool const are_lists_bags =
      sizes.has_bags && std::ranges::all_of(features, [](auto const& each) { return each.pooling != Pooling::kNone; });
  DeviceBuffer<std::int64_t> const own_offsets(are_lists_bags ? 0 : sizes.lists + 1, stream);
  std::int64_t* const offsets = are_lists_bags ? out.offsets.data() : own_offsets.data();
  find_offsets_async(LengthOfList{all}, sizes.lists, offsets, stream);
  if (sizes.has_bags && !are_lists_bags) find_offsets_async(LengthOfBag{all}, sizes.bags, out.offsets.data(), stream);
  for_each_async(std::max<std::uint64_t>({sizes.ids, sizes.lists, features.size() + 1}),
                 JoinIds{all, {all, offsets}, out.ids.data(), out.tables.data()}, stream, "JoinIds");
  if (sizes.has_weights) {
    for_each_async(sizes.ids, JoinWeights{all, offsets, out.weights.data()}, stream, "JoinWeights");
  }
}

}  // namespace headway::embedding
