// Deduplication on the GPU: the unique keys of a batch, their counts, and the CSR map to batch positions.
//
// Idea: three stages, each in a file of its own, all on the caller's stream.
//   1. unique_numbers.cu: a hash table finds the first occurrence of each key; a prefix sum numbers these occurrences.
//   2. grouping.cu: a radix sort of the batch positions by unique key gives `members`; run boundaries give `begins`.
//   3. unique_counts.cu: sums the lookups of each unique key's members.
// hand_out() then expands values of unique keys to bags (bag_sums.cu); add_up() reduces values of bags to unique keys
// (segmented_sum.cu).
//
// Example: batch 7 9 7 8. ids 7 9 8, numbers 0 1 0 2, members 0 2 1 3, begins 0 2 3 4, counts 2 1 1.
//
// Invariants: unique keys are in order of first occurrence and members ascend within each, so results do not depend on
//   the order of threads. The host never learns the number of unique keys: buffers have room for all keys to be unique.
//   Keys beyond Keys::num_known get the greatest number, so they sort behind all members.
// Complexity: O(keys): one hash table of 2 to 4 slots per key, one sort of 32-bit numbers, one or two prefix sums.

#include "cuda/bag_sums.hpp"
#include "cuda/batch_view.cuh"
#include "cuda/cuda_check.hpp"
#include "cuda/device_buffer.hpp"
#include "cuda/grouping.hpp"
#include "cuda/key_routes.hpp"
#include "cuda/launch.cuh"
#include "cuda/segmented_sum.cuh"
#include "cuda/unique_counts.hpp"
#include "cuda/unique_numbers.hpp"
#include "cuda/unique_order.hpp"
#include "cuda/unique_view.cuh"
#include "headway/comm/status.hpp"
#include "headway/embedding/cuda_deduplicator.hpp"
#include "headway/embedding/routing.hpp"

#include <string>
#include <utility>

namespace headway::embedding {

namespace {

constexpr std::size_t kEnd = std::size_t{1} << 31;  ///< Numbers of keys and bags are below it.
constexpr std::size_t kMaxDim = std::size_t{1} << 20;

void expect_complete(Keys const& keys) {
  comm::expects(keys.tables.empty() || keys.tables.size() == keys.size(), "not one table for each key");
  comm::expects(keys.counts.empty() || keys.counts.size() == keys.size(), "not one count for each key");
  comm::expects(keys.size() < kEnd, "a batch on a device has less than 2^31 keys");
}

void expect_complete(CudaUniqueKeys const& unique, std::size_t num_keys) {
  comm::expects(unique.ids.size() == num_keys && unique.counts.size() == num_keys &&
                    unique.numbers.size() == num_keys && unique.members.size() == num_keys &&
                    unique.begins.size() == num_keys + 1 && unique.size != nullptr,
                "no room for what there is of " + std::to_string(num_keys) + " unique keys");
  comm::expects(unique.tables.empty() || unique.tables.size() == num_keys, "not one table for each unique key");
  comm::expects(num_keys < kEnd, "a batch on a device has less than 2^31 keys");
}

/// Checks that `unique` has room for the unique keys of `keys`, and the same form of tables.
void expect_same(Keys const& keys, CudaUniqueKeys const& unique) {
  expect_complete(keys);
  expect_complete(unique, keys.size());
  comm::expects(unique.tables.size() == keys.tables.size() && (!keys.tables.empty() || unique.table == keys.table),
                "unique keys are not of the tables of the batch");
}

/// Checks the sizes of a call that moves values between bags and unique keys.
/// @param of_bags number of floats of all bags
/// @param of_unique number of floats of all unique keys
void expect_same_dim(CudaUniqueKeys const& unique, Bags const& bags, std::size_t dim, std::size_t of_bags,
                     std::size_t of_unique) {
  std::size_t const num_keys = unique.numbers.size();
  expect_complete(unique, num_keys);
  comm::expects(bags.weights.empty() || bags.weights.size() == num_keys, "not one weight for each key");
  std::size_t const num_bags = bags.offsets.empty() ? num_keys : bags.offsets.size() - 1;
  comm::expects(num_bags < kEnd, "there are less than 2^31 bags on a device");
  comm::expects(dim >= 1 && dim <= kMaxDim, "vectors have from 1 to 2^20 values, not " + std::to_string(dim));
  comm::expects(of_bags == num_bags * dim && of_unique % dim == 0,
                std::to_string(of_bags) + " values of " + std::to_string(num_bags) + " bags, and " +
                    std::to_string(of_unique) + " of unique keys, of " + std::to_string(dim) + " each");
}

struct TakeArgs {
  KeysView keys;
  std::uint32_t const* counts_of_keys;  ///< nullptr: 1 each.
  std::uint64_t* ids;
  std::uint32_t* tables;
  std::uint32_t* counts;
  std::uint32_t* numbers;
  std::uint32_t* members;
  std::uint32_t* begins;
  std::uint32_t* size;
};

// One thread per key and one for the end. Keys 7 9: numbers and members are 0 1, begins 0 1 2.
__global__ void __launch_bounds__(kBlockThreads) take_keys_kernel(TakeArgs args) {
  std::uint32_t const i = thread_number(), num_keys = args.keys.size();
  if (i > num_keys) return;
  args.begins[i] = i;
  if (i == num_keys) {
    *args.size = num_keys;
    return;
  }
  args.ids[i] = args.keys.ids[i];
  if (args.keys.tables != nullptr) args.tables[i] = args.keys.tables[i];
  args.counts[i] = args.counts_of_keys == nullptr ? 1 : args.counts_of_keys[i];
  args.numbers[i] = i;
  args.members[i] = i;
}

void take_keys_async(Keys const& keys, CudaUniqueKeys const& unique, cudaStream_t stream) {
  take_keys_kernel<<<num_blocks(keys.size() + 1), kBlockThreads, 0, stream>>>(
      {.keys = view_of(keys),
       .counts_of_keys = keys.counts.empty() ? nullptr : keys.counts.data(),
       .ids = unique.ids.data(),
       .tables = unique.tables.data(),
       .counts = unique.counts.data(),
       .numbers = unique.numbers.data(),
       .members = unique.members.data(),
       .begins = unique.begins.data(),
       .size = unique.size});
  check_launch("take_keys_kernel");
}

/// Has no state besides its place, so several threads may call it at once.
class StreamDeduplicator final : public CudaDeduplicator {
 public:
  explicit StreamDeduplicator(CudaPlace place) : place_(std::move(place)) {}

  void deduplicate(Keys const& keys, CudaUniqueKeys const& unique) override {
    expect_same(keys, unique);
    DeviceScope const scope(place_.device);
    cudaStream_t const stream = place_.stream();
    if (keys.size() == 0) return take_keys_async(keys, unique, stream);
    auto const size = static_cast<std::uint32_t>(keys.size());
    DeviceBuffer<std::uint32_t> const in_order(size, stream);
    number_unique_keys_async(keys, unique, in_order.data(), stream);
    group_members_async({.groups = unique.numbers.data(),
                         .last_group = size - 1,
                         .in_order = in_order.data(),
                         .num_members = {size, keys.num_known},
                         .num_groups = {size, unique.size},
                         .members = unique.members.data(),
                         .begins = unique.begins.data()},
                        stream);
    count_unique_keys_async(keys, unique, stream);
  }

  void take_as_unique(Keys const& keys, CudaUniqueKeys const& unique) override {
    expect_same(keys, unique);
    DeviceScope const scope(place_.device);
    take_keys_async(keys, unique, place_.stream());
  }

  void reorder(CudaUniqueKeys const& unique, std::span<std::uint32_t const> order,
               CudaUniqueKeys const& reordered) override {
    expect_complete(unique, unique.ids.size());
    expect_same(unique.keys(), reordered);
    DeviceScope const scope(place_.device);
    reorder_unique_keys_async(unique, order, reordered, place_.stream());
  }

  void hand_out(CudaUniqueKeys const& unique, Bags const& bags, std::size_t dim, std::span<float const> values,
                std::span<float> out) override {
    expect_same_dim(unique, bags, dim, out.size(), values.size());
    DeviceScope const scope(place_.device);
    sum_bags_async(unique, bags, dim, values.data(), out.data(), place_.stream());
  }

  void add_up(CudaUniqueKeys const& unique, Bags const& bags, std::size_t dim, std::span<float const> values,
              std::span<float> sums) override {
    expect_same_dim(unique, bags, dim, values.size(), sums.size());
    DeviceScope const scope(place_.device);
    cudaStream_t const stream = place_.stream();
    SegmentedSum const added_up(UniqueView(unique), unique.numbers.size(), bags, dim, values.data(), stream);
    write_sums_async(added_up.view(), sums, stream);
  }

  void route(Keys const& keys, std::span<std::uint32_t> order, std::span<std::int64_t> counts) override {
    expect_complete(keys);
    comm::expects(!counts.empty() && counts.size() <= kNumVirtualBuckets,
                  "keys cannot be divided among " + std::to_string(counts.size()) + " ranks");
    comm::expects(order.size() == keys.size(), "not one place in the order for each key");
    DeviceScope const scope(place_.device);
    route_keys_async(keys, order, counts, place_.stream());
  }

 private:
  CudaPlace place_;
};

}  // namespace

std::unique_ptr<CudaDeduplicator> make_cuda_deduplicator(CudaPlace const& place) {
  DeviceScope const scope(place.device);  // Fails here, not at the first call, if the device does not exist.
  return std::make_unique<StreamDeduplicator>(place);
}

}  // namespace headway::embedding
