// SPDX-License-Identifier: Apache-2.0

// Deduplication on the GPU: the unique keys of a batch, their counts, and the CSR map to batch positions.
//
// Idea: three stages, each in a file of its own, all on the caller's stream. The members of a unique key are its
// positions in the batch.
//   1. find_unique.cu: a hash table finds the first occurrence of each key; a prefix sum numbers these occurrences.
//   2. build_csr.cu: a radix sort of the batch positions by unique key gives `csr_indices`; run boundaries give
//   `csr_offsets`.
//   3. unique_counts.cu: sums the lookups of each unique key's members.
// expand() then expands values of unique keys to bags (bag_sums.cu); reduce() reduces values of bags to unique keys
// (segmented_sum.cu).
//
// Example: batch 7 9 7 8. ids 7 9 8, inverse_indices 0 1 0 2, csr_indices 0 2 1 3, csr_offsets 0 2 3 4, counts 2 1 1.
//
// Invariants: unique keys are in order of first occurrence and members ascend within each, so results do not depend on
//   the order of threads. The host never learns the number of unique keys: buffers have room for all keys to be unique.
//   Keys beyond Keys::num_known get the greatest index, so they sort behind all members.
// Complexity: O(keys): one hash table of 2 to 4 slots per key, one sort of 32-bit numbers, one or two prefix sums.

#include "cuda/batch/batch_view.cuh"
#include "cuda/deduplication/segmented_sum.cuh"
#include "cuda/deduplication/steps.hpp"
#include "cuda/deduplication/unique_view.cuh"
#include "cuda/runtime/device_buffer.hpp"
#include "cuda/runtime/launch.cuh"
#include "headway/base/cuda_check.hpp"
#include "headway/base/status.hpp"
#include "headway/embedding/cuda_deduplicator.hpp"
#include "headway/embedding/routing.hpp"

#include <string>
#include <utility>

namespace headway::embedding {

namespace {

constexpr std::size_t kEnd = std::size_t{1} << 31;  ///< Numbers of keys and bags are below it.
constexpr std::size_t kMaxDim = std::size_t{1} << 20;

void expect_complete(Keys const& keys) {
  base::expects(keys.tables.empty() || keys.tables.size() == keys.size(), "not one table for each key");
  base::expects(keys.counts.empty() || keys.counts.size() == keys.size(), "not one count for each key");
  base::expects(keys.size() < kEnd, "a batch on a device has less than 2^31 keys");
}

void expect_complete(CudaUniqueKeys const& unique, std::size_t num_keys) {
  base::expects(unique.ids.size() == num_keys && unique.counts.size() == num_keys &&
                    unique.inverse_indices.size() == num_keys && unique.csr_indices.size() == num_keys &&
                    unique.csr_offsets.size() == num_keys + 1 && unique.size != nullptr,
                "no room for what there is of " + std::to_string(num_keys) + " unique keys");
  base::expects(unique.tables.empty() || unique.tables.size() == num_keys, "not one table for each unique key");
  base::expects(num_keys < kEnd, "a batch on a device has less than 2^31 keys");
}

/// Checks that `unique` has room for the unique keys of `keys`, and the same form of tables.
void expect_same(Keys const& keys, CudaUniqueKeys const& unique) {
  expect_complete(keys);
  expect_complete(unique, keys.size());
  base::expects(unique.tables.size() == keys.tables.size() && (!keys.tables.empty() || unique.table == keys.table),
                "unique keys are not of the tables of the batch");
}

/// Checks the sizes of a call that moves values between bags and unique keys.
/// @param of_bags number of floats of all bags
/// @param of_unique number of floats of all unique keys
void expect_same_dim(CudaUniqueKeys const& unique, Bags const& bags, std::size_t dim, std::size_t of_bags,
                     std::size_t of_unique) {
  std::size_t const num_keys = unique.inverse_indices.size();
  expect_complete(unique, num_keys);
  base::expects(bags.weights.empty() || bags.weights.size() == num_keys, "not one weight for each key");
  std::size_t const num_bags = bags.offsets.empty() ? num_keys : bags.offsets.size() - 1;
  base::expects(num_bags < kEnd, "there are less than 2^31 bags on a device");
  base::expects(dim >= 1 && dim <= kMaxDim, "embeddings have from 1 to 2^20 values, not " + std::to_string(dim));
  base::expects(of_bags == num_bags * dim && of_unique % dim == 0,
                std::to_string(of_bags) + " values of " + std::to_string(num_bags) + " bags, and " +
                    std::to_string(of_unique) + " of unique keys, of " + std::to_string(dim) + " each");
}

struct FromUniqueArgs {
  KeysView keys;
  std::uint32_t const* counts_of_keys;  ///< nullptr: 1 each.
  std::uint64_t* ids;
  std::uint32_t* tables;
  std::uint32_t* counts;
  std::uint32_t* inverse_indices;
  std::uint32_t* csr_indices;
  std::uint32_t* csr_offsets;
  std::uint32_t* size;
};

// One thread per key and one for the end. Keys 7 9: inverse_indices and csr_indices are 0 1, csr_offsets 0 1 2.
__global__ void __launch_bounds__(kBlockThreads) from_unique_kernel(FromUniqueArgs args) {
  std::uint32_t const i = thread_index(), num_keys = args.keys.size();
  if (i > num_keys) return;
  args.csr_offsets[i] = i;
  if (i == num_keys) {
    *args.size = num_keys;
    return;
  }
  args.ids[i] = args.keys.ids[i];
  if (args.keys.tables != nullptr) args.tables[i] = args.keys.tables[i];
  args.counts[i] = args.counts_of_keys == nullptr ? 1 : args.counts_of_keys[i];
  args.inverse_indices[i] = i;
  args.csr_indices[i] = i;
}

void from_unique_async(Keys const& keys, CudaUniqueKeys const& unique, cudaStream_t stream) {
  from_unique_kernel<<<num_blocks(keys.size() + 1), kBlockThreads, 0, stream>>>(
      {.keys = view_of(keys),
       .counts_of_keys = keys.counts.empty() ? nullptr : keys.counts.data(),
       .ids = unique.ids.data(),
       .tables = unique.tables.data(),
       .counts = unique.counts.data(),
       .inverse_indices = unique.inverse_indices.data(),
       .csr_indices = unique.csr_indices.data(),
       .csr_offsets = unique.csr_offsets.data(),
       .size = unique.size});
  base::check_launch("from_unique_kernel");
}

/// Has no state besides its place, so several threads may call it at once.
class StreamDeduplicator final : public CudaDeduplicator {
 public:
  explicit StreamDeduplicator(CudaPlace place) : place_(std::move(place)) {}

  void deduplicate(Keys const& keys, CudaUniqueKeys const& unique) override {
    expect_same(keys, unique);
    base::DeviceScope const scope(place_.device);
    cudaStream_t const stream = place_.stream();
    // CUB and grids of zero blocks do not like empty batches. from_unique_kernel sets size and csr_offsets[0] to 0.
    if (keys.size() == 0) return from_unique_async(keys, unique, stream);
    auto const size = static_cast<std::uint32_t>(keys.size());
    // The sort of build_csr_async() needs the positions 0, 1, 2, ... as values. A kernel that runs anyway writes them.
    DeviceBuffer<std::uint32_t> const in_order(size, stream);
    find_unique_keys_async(keys, unique, in_order.data(), stream);
    build_csr_async({.segments = unique.inverse_indices.data(),
                     .last_segment = size - 1,
                     .in_order = in_order.data(),
                     .num_items = {size, keys.num_known},
                     .num_segments = {size, unique.size},
                     .csr_indices = unique.csr_indices.data(),
                     .csr_offsets = unique.csr_offsets.data()},
                    stream);
    count_unique_keys_async(keys, unique, stream);
  }

  void from_unique(Keys const& keys, CudaUniqueKeys const& unique) override {
    expect_same(keys, unique);
    base::DeviceScope const scope(place_.device);
    from_unique_async(keys, unique, place_.stream());
  }

  void reorder(CudaUniqueKeys const& unique, std::span<std::uint32_t const> order,
               CudaUniqueKeys const& reordered) override {
    expect_complete(unique, unique.ids.size());
    expect_same(unique.keys(), reordered);
    base::DeviceScope const scope(place_.device);
    reorder_unique_keys_async(unique, order, reordered, place_.stream());
  }

  void expand(CudaUniqueKeys const& unique, Bags const& bags, std::size_t dim, std::span<float const> values,
              std::span<float> out) override {
    expect_same_dim(unique, bags, dim, out.size(), values.size());
    base::DeviceScope const scope(place_.device);
    sum_bags_async(unique, bags, dim, values.data(), out.data(), place_.stream());
  }

  void reduce(CudaUniqueKeys const& unique, Bags const& bags, std::size_t dim, std::span<float const> values,
              std::span<float> sums) override {
    expect_same_dim(unique, bags, dim, values.size(), sums.size());
    base::DeviceScope const scope(place_.device);
    cudaStream_t const stream = place_.stream();
    SegmentedSum const sums_of_keys(UniqueView(unique), unique.inverse_indices.size(), bags, dim, values.data(),
                                    stream);
    write_sums_async(sums_of_keys.view(), sums, stream);
  }

  void route(Keys const& keys, std::span<std::uint32_t> order, std::span<std::int64_t> counts) override {
    expect_complete(keys);
    base::expects(!counts.empty() && counts.size() <= kNumVirtualBuckets,
                  "keys cannot be divided among " + std::to_string(counts.size()) + " ranks");
    base::expects(order.size() == keys.size(), "not one place in the order for each key");
    base::DeviceScope const scope(place_.device);
    route_keys_async(keys, order, counts, place_.stream());
  }

 private:
  CudaPlace place_;
};

}  // namespace

std::unique_ptr<CudaDeduplicator> make_cuda_deduplicator(CudaPlace const& place) {
  base::DeviceScope const scope(place.device);  // Fails here, not at the first call, if the device does not exist.
  return std::make_unique<StreamDeduplicator>(place);
}

}  // namespace headway::embedding
