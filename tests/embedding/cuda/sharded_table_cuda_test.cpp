// SPDX-License-Identifier: Apache-2.0

// A ShardedTable of one rank on a device trains as one in host memory does. Gradients are small integers, so sums have
// the same bits in any order; the rows may differ by rounding in the optimizers. The variable `merged` is the index of
// a merged table: tables of equal options that share storage.

#include "device_array.hpp"
#include "headway/embedding/batch_device.hpp"
#include "headway/embedding/sharded_table.hpp"
#include "sharded_table_fixture.hpp"

#include <gtest/gtest.h>

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace headway::embedding {
namespace {

/// Stages at which a lookup removes duplicates (none, before keys are sent, at their owner, both), and the optimizer.
using DeviceMode = std::tuple<Dedup, kernels::OptimizerKind>;

class CudaShardedTableTest : public testing::TestWithParam<DeviceMode> {
 protected:
  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "no CUDA device";
  }
};

/// Copy on the device of a RankBatch: ids, lengths, weights and gradients of the features of one rank.
class DeviceRankBatch {
 public:
  explicit DeviceRankBatch(RankBatch const& batch) : weights_(batch.tag_weights) {
    for (auto const* each :
         {&batch.users, &batch.user_lengths, &batch.tags, &batch.tag_lengths, &batch.items, &batch.item_lengths}) {
      integers_.push_back(std::make_unique<DeviceArray<std::int64_t>>(*each));
    }
    for (auto const& each : batch.gradients) gradients_.push_back(std::make_unique<DeviceArray<float>>(each));
  }

  [[nodiscard]] std::vector<Feature> features() const {
    auto const integers = [this](std::size_t i) { return Integers{integers_[i]->data(), integers_[i]->span().size()}; };
    return {{.name = "user", .table = kUsers, .ids = integers(0), .lengths = integers(1)},
            {.name = "tags",
             .table = kTags,
             .pooling = Pooling::kSum,
             .ids = integers(2),
             .lengths = integers(3),
             .weights = weights_.span()},
            {.name = "items", .table = kItems, .pooling = Pooling::kSum, .ids = integers(4), .lengths = integers(5)}};
  }
  [[nodiscard]] std::vector<std::span<float const>> gradients() const {
    std::vector<std::span<float const>> result;
    for (auto const& each : gradients_) result.emplace_back(each->span());
    return result;
  }

 private:
  std::vector<std::unique_ptr<DeviceArray<std::int64_t>>> integers_;
  std::vector<std::unique_ptr<DeviceArray<float>>> gradients_;
  DeviceArray<float> weights_;
};

Outputs expand_on_device(ShardedTable& tables, ShardedTable::Batch const& batch) {
  Outputs outputs;
  for (std::size_t merged = 0; merged < tables.num_tables(); ++merged) {
    std::size_t const count = batch.num_bags(merged) * tables.table(merged).dim();
    DeviceArray<float> const out(count, -1.0F);
    tables.expand(batch, merged, out.span());
    outputs.push_back(out.first(count));
  }
  return outputs;
}

TEST_P(CudaShardedTableTest, TrainsAsOneInHostMemory) {
  auto const [dedup, optimizer] = GetParam();
  std::mt19937 random(11);
  ShardedTable host(tables_with(optimizer), make_local_exchanger(), {.dedup = dedup});
  ShardedTable device(tables_with(optimizer), make_local_exchanger(),
                      {.dedup = dedup, .device = make_cuda_batch_device({})});
  for (std::uint32_t step = 1; step <= 4; ++step) {
    RankBatch const batch = random_batch(random), more = random_batch(random);
    DeviceRankBatch const on_device(batch), more_on_device(more);
    host.begin_step(step);
    device.begin_step(step);
    auto const expected = host.begin(batch.features()), expected_more = host.begin(more.features());
    auto const actual = device.begin(on_device.features()), actual_more = device.begin(more_on_device.features());
    for (auto const& each : {expected.get(), expected_more.get()}) host.finish(*each);
    for (auto const& each : {actual.get(), actual_more.get()}) device.finish(*each);
    auto const outputs = expand_on_device(device, *actual), expected_outputs = expand_all(host, *expected);
    for (std::size_t merged = 0; merged < 2; ++merged) {
      ASSERT_EQ(outputs[merged].size(), expected_outputs[merged].size());
      for (std::size_t i = 0; i < outputs[merged].size(); ++i) {
        ASSERT_NEAR(outputs[merged][i], expected_outputs[merged][i], 1e-5) << "step " << step << ", value " << i;
      }
    }
    auto const views = [](Outputs const& gradients) {
      return std::vector<std::span<float const>>(gradients.begin(), gradients.end());
    };
    host.return_gradients(*expected, views(batch.gradients));
    device.return_gradients(*actual, on_device.gradients());
    if (step % 2 == 0) {  // Two batches in one step, a factor, and different rates in a merged table.
      host.return_gradients(*expected_more, views(more.gradients));
      device.return_gradients(*actual_more, more_on_device.gradients());
      host.scale_gradients(0.5F);
      device.scale_gradients(0.5F);
      EXPECT_NEAR(device.gradient_norm(), host.gradient_norm(), 1e-9 * host.gradient_norm());
    }
    StepRates const rates{.rate = 0.5, .of_tables = {{kTags, step % 2 == 0 ? 0.25 : 0.5}}};
    constexpr float kGradientDivisor = 2;
    host.apply_gradients(step, rates, kGradientDivisor);
    device.apply_gradients(step, rates, kGradientDivisor);
  }
  Contents expected, actual;
  for (std::size_t merged = 0; merged < 2; ++merged) {
    add_contents(expected, host.table(merged));
    add_contents(actual, device.table(merged));
  }
  ASSERT_EQ(actual.size(), expected.size());
  for (auto const& [key, values] : expected) {
    ASSERT_TRUE(actual.contains(key)) << "id " << key.second << " of table " << key.first;
    for (std::size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(actual[key][i], values[i], 1e-5) << "id " << key.second;
  }
  // Keys of all batches, those left by the first deduplication, and those left by the second one.
  auto const traffic = device.traffic(), expected_traffic = host.traffic();
  EXPECT_EQ(traffic.keys, expected_traffic.keys);
  EXPECT_EQ(traffic.keys_routed, expected_traffic.keys_routed);
  EXPECT_EQ(traffic.keys_found, expected_traffic.keys_found);
}

INSTANTIATE_TEST_SUITE_P(Modes, CudaShardedTableTest,
                         testing::Combine(testing::Values(Dedup::kNone, Dedup::kFirst, Dedup::kSecond, Dedup::kBoth),
                                          testing::Values(kernels::OptimizerKind::kSgd,
                                                          kernels::OptimizerKind::kRowWiseAdagrad,
                                                          kernels::OptimizerKind::kAdam)));

}  // namespace
}  // namespace headway::embedding
