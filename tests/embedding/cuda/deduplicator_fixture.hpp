// SPDX-License-Identifier: Apache-2.0

// Batches of keys (ids with their table's number) on the host and on a CUDA device, and the fixture of tests that
// compare both.

#pragma once

#include "device_array.hpp"
#include "headway/embedding/cuda_deduplicator.hpp"

#include <gtest/gtest.h>

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <vector>

namespace headway::embedding {

/// Keys of a batch in host memory.
struct HostBatch {
  std::vector<std::uint64_t> ids{};
  std::vector<std::uint32_t> tables{};  ///< Table of each key; empty: all keys are of `table`.
  std::uint32_t table = 0;
  std::vector<std::uint32_t> counts{};  ///< Lookups that each key stands for.

  [[nodiscard]] Keys keys() const { return {.ids = ids, .tables = tables, .table = table, .counts = counts}; }
  /// The first `size` keys.
  [[nodiscard]] Keys keys(std::size_t size) const {
    auto const head = [size](auto const& column) { return std::span(column).first(std::min(column.size(), size)); };
    return {.ids = head(ids), .tables = head(tables), .table = table, .counts = head(counts)};
  }
};

/// A HostBatch on the device. Its keys may be a prefix, of a length that only the device knows.
class DeviceBatch {
 public:
  explicit DeviceBatch(HostBatch const& batch)
      : ids_(batch.ids), tables_(batch.tables), counts_(batch.counts), table_(batch.table) {}

  [[nodiscard]] Keys keys(std::uint32_t const* num_known = nullptr) const {
    return {.ids = ids_.span(),
            .tables = tables_.span(),
            .table = table_,
            .counts = counts_.span(),
            .num_known = num_known};
  }

 private:
  DeviceArray<std::uint64_t> ids_;
  DeviceArray<std::uint32_t> tables_, counts_;
  std::uint32_t table_;
};

/// Device memory for the unique keys of a batch, filled with values that a call must overwrite.
class Room {
 public:
  explicit Room(Keys const& keys)
      : ids_(keys.size(), 77),
        tables_(keys.tables.size(), 77),
        counts_(keys.size(), 77),
        inverse_indices_(keys.size(), 0xfffffff0),
        csr_indices_(keys.size(), 0xfffffff0),
        csr_offsets_(keys.size() + 1, 77),
        size_(1, 77),
        table_(keys.table) {}

  [[nodiscard]] CudaUniqueKeys view() const {
    return {.ids = ids_.span(),
            .tables = tables_.span(),
            .table = table_,
            .counts = counts_.span(),
            .inverse_indices = inverse_indices_.span(),
            .csr_indices = csr_indices_.span(),
            .csr_offsets = csr_offsets_.span(),
            .size = size_.data()};
  }
  [[nodiscard]] std::size_t size() const { return size_.all()[0]; }
  /// Copies the unique keys to the host. @param num_keys keys of the batch, without those behind the known prefix
  [[nodiscard]] UniqueKeys download(std::size_t num_keys) const {
    std::size_t const num_unique = size();
    return {.ids = ids_.first(num_unique),
            .tables = tables_.first(tables_.span().empty() ? 0 : num_unique),
            .table = table_,
            .counts = counts_.first(num_unique),
            .inverse_indices = inverse_indices_.first(num_keys),
            .csr_indices = csr_indices_.first(num_keys),
            .csr_offsets = csr_offsets_.first(num_unique + 1)};
  }

 private:
  DeviceArray<std::uint64_t> ids_;
  DeviceArray<std::uint32_t> tables_, counts_, inverse_indices_, csr_indices_, csr_offsets_, size_;
  std::uint32_t table_;
};

inline void expect_same(UniqueKeys const& actual, UniqueKeys const& expected) {
  EXPECT_EQ(actual.size(), expected.size());
  EXPECT_TRUE(actual.ids == expected.ids);
  EXPECT_TRUE(actual.tables == expected.tables);
  EXPECT_EQ(actual.table, expected.table);
  EXPECT_TRUE(actual.counts == expected.counts);
  EXPECT_TRUE(actual.inverse_indices == expected.inverse_indices);
  EXPECT_TRUE(actual.csr_indices == expected.csr_indices);
  EXPECT_TRUE(actual.csr_offsets == expected.csr_offsets);
}

/// Parameters of random_batch().
struct BatchKind {
  std::size_t size = 0;
  std::uint64_t num_ids = 1;  ///< Number of different ids to draw from.
  std::uint32_t num_tables = 1;
  std::uint64_t end_of_counts = 0;  ///< Upper bound of counts (exclusive); 0: no counts.
};

/// Keys of table 9 if there is one table, else of tables 0 to num_tables - 1.
inline HostBatch random_batch(std::mt19937_64& random, BatchKind const& kind) {
  HostBatch batch{.table = kind.num_tables == 1 ? 9U : 0U};
  for (std::size_t i = 0; i < kind.size; ++i) {
    // A skewed draw: few ids make up most of the batch.
    auto const end = random() % kind.num_ids + 1;
    batch.ids.push_back(random() % end * 0x9e3779b97f4a7c15);
    if (kind.num_tables > 1) batch.tables.push_back(static_cast<std::uint32_t>(random() % kind.num_tables));
    if (kind.end_of_counts > 0) batch.counts.push_back(static_cast<std::uint32_t>(random() % kind.end_of_counts));
  }
  return batch;
}

/// Integers from -8 to 8; their sums are exact in any order.
inline std::vector<float> random_integers(std::mt19937_64& random, std::size_t size) {
  std::vector<float> values(size);
  for (auto& value : values) value = static_cast<float>(static_cast<int>(random() % 17) - 8);
  return values;
}

/// Bags in host memory: bag b holds the keys from offsets[b] to offsets[b + 1] - 1. No offsets: each key is a bag.
struct HostBags {
  std::vector<std::int64_t> offsets{};
  std::vector<float> weights{};

  [[nodiscard]] Bags view() const { return {.offsets = offsets, .weights = weights}; }
  [[nodiscard]] std::size_t size(std::size_t num_keys) const { return offsets.empty() ? num_keys : offsets.size() - 1; }
};

/// Offsets of bags of 0 to 20 keys, with one that has a third of all keys.
inline std::vector<std::int64_t> random_offsets(std::mt19937_64& random, std::size_t num_keys) {
  auto const end = static_cast<std::int64_t>(num_keys);
  std::vector<std::int64_t> offsets{0, 0, end / 3};
  while (offsets.back() < end) {
    offsets.push_back(std::min(end, offsets.back() + static_cast<std::int64_t>(random() % 21)));
  }
  offsets.push_back(end);
  return offsets;
}

/// All combinations of bags: with and without offsets, with and without weights.
inline std::vector<HostBags> all_kinds_of_bags(std::mt19937_64& random, std::size_t num_keys) {
  auto const offsets = random_offsets(random, num_keys);
  auto const weights = random_integers(random, num_keys);
  return {{}, {.weights = weights}, {.offsets = offsets}, {.offsets = offsets, .weights = weights}};
}

/// Fixture: a deduplicator on device 0 with a stream of its own, and one on the CPU as the reference.
class CudaDeduplicatorTest : public testing::Test {
 protected:
  void SetUp() override {
    int num_devices = 0;
    if (cudaGetDeviceCount(&num_devices) != cudaSuccess || num_devices == 0) GTEST_SKIP() << "there is no CUDA device";
    base::check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    deduplicator_ = make_cuda_deduplicator(place());
  }
  /// Device and stream of the objects under test.
  [[nodiscard]] CudaPlace place() const {
    return {.device = 0, .current_stream = [this] { return stream_; }};
  }
  void TearDown() override {
    if (stream_ != nullptr) base::check_cuda(cudaStreamDestroy(stream_), "cudaStreamDestroy");
  }

  std::vector<float> expand(Room const& room, HostBags const& bags, std::size_t dim, std::vector<float> const& values,
                            std::size_t out_size) {
    DeviceArray<std::int64_t> const offsets(bags.offsets);
    DeviceArray<float> const weights(bags.weights), from(values), out(out_size, -99);
    deduplicator_->expand(room.view(), {.offsets = offsets.span(), .weights = weights.span()}, dim, from.span(),
                          out.span());
    return out.all();
  }
  std::vector<float> reduce(Room const& room, HostBags const& bags, std::size_t dim, std::vector<float> const& values,
                            std::size_t sums_size) {
    DeviceArray<std::int64_t> const offsets(bags.offsets);
    DeviceArray<float> const weights(bags.weights), from(values), sums(sums_size, -99);
    deduplicator_->reduce(room.view(), {.offsets = offsets.span(), .weights = weights.span()}, dim, from.span(),
                          sums.span());
    return sums.all();
  }

  std::mt19937_64 random_{5};
  std::unique_ptr<Deduplicator> cpu_ = make_cpu_deduplicator();
  cudaStream_t stream_ = nullptr;
  std::unique_ptr<CudaDeduplicator> deduplicator_;
};

}  // namespace headway::embedding
