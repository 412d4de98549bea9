// SPDX-License-Identifier: Apache-2.0

// expand() and reduce() on a CUDA device, compared with the CPU.
//
// expand() sums the embeddings of each bag's keys. reduce() sums the gradients of all bags that hold a key. The members
// of a unique key are its positions in the batch. A Room is device memory for the unique keys.

#include "deduplicator_fixture.hpp"
#include "headway/embedding/cuda_table.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace headway::embedding {
namespace {

class CudaDeduplicatorSumsTest : public CudaDeduplicatorTest {
 protected:
  void expect_sums_of_cpu(HostBatch const& batch, std::size_t dim) {
    DeviceBatch const on_device(batch);
    Room const room(on_device.keys());
    deduplicator_->deduplicate(on_device.keys(), room.view());
    auto const unique = cpu_->deduplicate(batch.keys());
    for (auto const& bags : all_kinds_of_bags(random_, batch.ids.size())) {
      SCOPED_TRACE(testing::Message() << "dim " << dim << " offsets " << bags.offsets.size() << " weights "
                                      << bags.weights.size());
      std::size_t const num_bags = bags.size(batch.ids.size());
      auto const of_unique = random_integers(random_, unique.size() * dim);
      auto const of_bags = random_integers(random_, num_bags * dim);
      std::vector<float> out(of_bags.size()), sums(of_unique.size());
      cpu_->expand(unique, bags.view(), of_unique, out);
      cpu_->reduce(unique, bags.view(), of_bags, sums);
      EXPECT_TRUE(expand(room, bags, dim, of_unique, out.size()) == out);
      EXPECT_TRUE(reduce(room, bags, dim, of_bags, sums.size()) == sums);
    }
  }
};

TEST_F(CudaDeduplicatorSumsTest, BagsGetTheSumsOfTheirKeysAndGiveThemBack) {
  for (std::size_t const dim : {1, 3, 5, 8, 64, 130, 1'024}) {
    for (std::size_t const size : {0, 1, 31, 1'000}) {
      expect_sums_of_cpu(random_batch(random_, {.size = size, .num_ids = size / 3 + 1, .num_tables = 2}), dim);
    }
  }
  expect_sums_of_cpu(random_batch(random_, {.size = 100'000, .num_ids = 30'000}), 8);
}

TEST_F(CudaDeduplicatorSumsTest, KeysMayHaveMembersInAnyNumberOfChunks) {
  // Numbers of members around the sizes of a chunk (64 members) and of a window (32 chunks).
  HostBatch batch;
  std::uint64_t id = 0;
  for (std::size_t const run : {64, 1, 63, 65, 127, 1, 128, 64, 2'048, 2'112, 2'113, 1, 2'049, 4'096, 1, 1, 9'999}) {
    batch.ids.insert(batch.ids.end(), run, id++);
  }
  expect_sums_of_cpu(batch, 4);
  expect_sums_of_cpu(batch, 3);
  std::shuffle(batch.ids.begin(), batch.ids.end(), random_);
  expect_sums_of_cpu(batch, 68);
}

TEST_F(CudaDeduplicatorSumsTest, OneKeyMayHaveNearlyAllMembers) {
  HostBatch batch{.ids = std::vector<std::uint64_t>(200'000, 42)};
  for (std::size_t i = 0; i < batch.ids.size(); i += 997) batch.ids[i] = i;
  expect_sums_of_cpu(batch, 8);
  expect_sums_of_cpu(batch, 5);
}

TEST_F(CudaDeduplicatorSumsTest, SumsHaveTheSameBitsInAllRunsWhateverTheAlignment) {
  constexpr std::size_t kSize = 50'000, kDim = 16;
  auto batch = random_batch(random_, {.size = kSize, .num_ids = 1'000});
  for (std::size_t i = 0; i < kSize; i += 3) batch.ids[i] = 42;
  DeviceBatch const on_device(batch);
  Room const room(on_device.keys());
  deduplicator_->deduplicate(on_device.keys(), room.view());
  auto const unique = cpu_->deduplicate(batch.keys());
  std::vector<float> values(kSize * kDim), expected(unique.size() * kDim);
  for (auto& value : values) value = std::normal_distribution<float>(0, 1)(random_);
  cpu_->reduce(unique, {}, values, expected);
  auto const sums = reduce(room, {}, kDim, values, expected.size());
  for (std::size_t i = 0; i < sums.size(); ++i) ASSERT_NEAR(sums[i], expected[i], 2e-3) << i;
  EXPECT_TRUE(reduce(room, {}, kDim, values, expected.size()) == sums);

  values.insert(values.begin(), 0);
  DeviceArray<float> const shifted(values), out(expected.size(), -99);
  deduplicator_->reduce(room.view(), {}, kDim, shifted.span().subspan(1), out.span());
  EXPECT_TRUE(out.all() == sums);
}

TEST_F(CudaDeduplicatorSumsTest, RowsLearnFromBagsTheSameInAllRuns) {
  constexpr std::size_t kSize = 50'000, kDim = 16;
  auto batch = random_batch(random_, {.size = kSize, .num_ids = 20'000});
  for (std::size_t i = 0; i < kSize; i += 3) batch.ids[i] = 42;
  auto bags = all_kinds_of_bags(random_, kSize).back();  // With offsets and weights.
  // Positive weights: a sum that should be 0 would leave rounding errors, which Adagrad scales up to full size.
  for (float& weight : bags.weights) weight = std::abs(weight) + 1;
  std::vector<float> gradients(bags.size(kSize) * kDim);
  for (auto& value : gradients) value = std::normal_distribution<float>(0, 1)(random_);
  TableOptions const options{.dim = kDim,
                             .initializer = Initializer::uniform(-1, 1, 3),
                             .optimizer = {.kind = kernels::OptimizerKind::kRowWiseAdagrad}};
  kernels::OptimizerStep const step{.learning_rate = 0.1};
  auto const unique = cpu_->deduplicate(batch.keys());
  std::vector<RowId> rows_of_cpu(unique.size());
  std::vector<float> before(unique.size() * kDim), expected(before.size());
  auto const of_cpu = make_cpu_table(options);
  of_cpu->find_or_insert(unique.keys(), rows_of_cpu, {});
  of_cpu->gather(unique.keys(), rows_of_cpu, before);
  of_cpu->update_bags(unique.keys(), rows_of_cpu, unique.csr(), bags.view(), gradients, step);
  of_cpu->gather(unique.keys(), rows_of_cpu, expected);

  DeviceBatch const on_device(batch);
  Room const room(on_device.keys());
  deduplicator_->deduplicate(on_device.keys(), room.view());
  DeviceArray<std::int64_t> const offsets(bags.offsets);
  DeviceArray<float> const weights(bags.weights), from(gradients);
  DeviceArray<std::uint32_t> const none(1, 0);
  // Keys and rows beyond the first *num_known hold arbitrary values, and must not be used.
  auto const update_and_gather = [&](std::uint32_t const* num_known) {
    auto const table = make_cuda_table(options, place());
    auto const view = room.view();
    auto keys = view.keys();
    DeviceArray<RowId> const rows(kSize, RowId{0x77777777});
    table->find_or_insert(keys, rows.span(), {});
    keys.num_known = num_known == nullptr ? keys.num_known : num_known;
    table->update_bags(
        keys, rows.span(),
        {.inverse_indices = view.inverse_indices, .csr_indices = view.csr_indices, .csr_offsets = view.csr_offsets},
        {.offsets = offsets.span(), .weights = weights.span()}, from.span(), step);
    DeviceArray<float> const out(kSize * kDim, 0);
    table->gather(view.keys(), rows.span(), out.span());
    static_cast<void>(table->size());
    return out.first(expected.size());
  };
  auto const updated = update_and_gather(nullptr);
  for (std::size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(updated[i], expected[i], 1e-4) << i;
  EXPECT_TRUE(update_and_gather(nullptr) == updated);
  EXPECT_TRUE(update_and_gather(none.data()) == before);
}

}  // namespace
}  // namespace headway::embedding
