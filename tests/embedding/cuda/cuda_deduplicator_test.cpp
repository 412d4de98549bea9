// Duplicates in batches of keys on a CUDA device, against what the CPU says of them.

#include "headway/embedding/cuda_deduplicator.hpp"

#include "device_array.hpp"
#include "headway/comm/status.hpp"
#include "headway/embedding/cuda_table.hpp"
#include "headway/embedding/routing.hpp"

#include <gtest/gtest.h>

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <utility>
#include <vector>

namespace headway::embedding {
namespace {

struct Batch {
  std::vector<std::uint64_t> ids{};
  std::vector<std::uint32_t> tables{};
  std::uint32_t table = 0;
  std::vector<std::uint32_t> counts{};

  [[nodiscard]] Keys keys() const { return {.ids = ids, .tables = tables, .table = table, .counts = counts}; }
  /// The first of them.
  [[nodiscard]] Keys keys(std::size_t size) const {
    auto const head = [size](auto const& column) { return std::span(column).first(std::min(column.size(), size)); };
    return {.ids = head(ids), .tables = head(tables), .table = table, .counts = head(counts)};
  }
};

class DeviceBatch {
 public:
  explicit DeviceBatch(Batch const& batch)
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

/// Room for the unique keys of a batch.
class Room {
 public:
  explicit Room(Keys const& keys)
      : ids_(keys.size(), 77),
        tables_(keys.tables.size(), 77),
        counts_(keys.size(), 77),
        numbers_(keys.size(), 0xfffffff0),
        members_(keys.size(), 0xfffffff0),
        begins_(keys.size() + 1, 77),
        size_(1, 77),
        table_(keys.table) {}

  [[nodiscard]] CudaUniqueKeys view() const {
    return {.ids = ids_.span(),
            .tables = tables_.span(),
            .table = table_,
            .counts = counts_.span(),
            .numbers = numbers_.span(),
            .members = members_.span(),
            .begins = begins_.span(),
            .size = size_.data()};
  }
  [[nodiscard]] std::size_t size() const { return size_.all()[0]; }
  /// @param num_keys the known ones
  [[nodiscard]] UniqueKeys download(std::size_t num_keys) const {
    std::size_t const num_unique = size();
    return {.ids = ids_.first(num_unique),
            .tables = tables_.first(tables_.span().empty() ? 0 : num_unique),
            .table = table_,
            .counts = counts_.first(num_unique),
            .numbers = numbers_.first(num_keys),
            .members = members_.first(num_keys),
            .begins = begins_.first(num_unique + 1)};
  }

 private:
  DeviceArray<std::uint64_t> ids_;
  DeviceArray<std::uint32_t> tables_, counts_, numbers_, members_, begins_, size_;
  std::uint32_t table_;
};

void expect_same(UniqueKeys const& actual, UniqueKeys const& expected) {
  EXPECT_EQ(actual.size(), expected.size());
  EXPECT_TRUE(actual.ids == expected.ids);
  EXPECT_TRUE(actual.tables == expected.tables);
  EXPECT_EQ(actual.table, expected.table);
  EXPECT_TRUE(actual.counts == expected.counts);
  EXPECT_TRUE(actual.numbers == expected.numbers);
  EXPECT_TRUE(actual.members == expected.members);
  EXPECT_TRUE(actual.begins == expected.begins);
}

struct BatchKind {
  std::size_t size = 0;
  std::uint64_t num_ids = 1;
  std::uint32_t num_tables = 1;
  std::uint64_t end_of_counts = 0;  ///< 0: there are none.
};

Batch random_batch(std::mt19937_64& random, BatchKind const& kind) {
  Batch batch{.table = kind.num_tables == 1 ? 9U : 0U};
  for (std::size_t i = 0; i < kind.size; ++i) {
    // A few ids come most of the time.
    batch.ids.push_back(random() % (random() % kind.num_ids + 1) * 0x9e3779b97f4a7c15);
    if (kind.num_tables > 1) batch.tables.push_back(static_cast<std::uint32_t>(random() % kind.num_tables));
    if (kind.end_of_counts > 0) batch.counts.push_back(static_cast<std::uint32_t>(random() % kind.end_of_counts));
  }
  return batch;
}

/// Of which sums are exact.
std::vector<float> random_integers(std::mt19937_64& random, std::size_t size) {
  std::vector<float> values(size);
  for (auto& value : values) value = static_cast<float>(static_cast<int>(random() % 17) - 8);
  return values;
}

struct HostBags {
  std::vector<std::int64_t> offsets{};
  std::vector<float> weights{};

  [[nodiscard]] Bags view() const { return {.offsets = offsets, .weights = weights}; }
  [[nodiscard]] std::size_t size(std::size_t num_keys) const { return offsets.empty() ? num_keys : offsets.size() - 1; }
};

/// Bags of 0 to 20 keys, and a long one.
std::vector<std::int64_t> random_offsets(std::mt19937_64& random, std::size_t num_keys) {
  auto const end = static_cast<std::int64_t>(num_keys);
  std::vector<std::int64_t> offsets{0, 0, end / 3};
  while (offsets.back() < end) {
    offsets.push_back(std::min(end, offsets.back() + static_cast<std::int64_t>(random() % 21)));
  }
  offsets.push_back(end);
  return offsets;
}

/// Each key alone and in bags, with weights and without.
std::vector<HostBags> all_kinds_of_bags(std::mt19937_64& random, std::size_t num_keys) {
  auto const offsets = random_offsets(random, num_keys);
  auto const weights = random_integers(random, num_keys);
  return {{}, {.weights = weights}, {.offsets = offsets}, {.offsets = offsets, .weights = weights}};
}

class CudaDeduplicatorTest : public testing::Test {
 protected:
  void SetUp() override {
    int num_devices = 0;
    if (cudaGetDeviceCount(&num_devices) != cudaSuccess || num_devices == 0) GTEST_SKIP() << "there is no CUDA device";
    // One that does not wait for the default stream.
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    deduplicator_ = make_cuda_deduplicator(place());
  }
  [[nodiscard]] CudaPlace place() const {
    return {.device = 0, .current_stream = [this] { return stream_; }};
  }
  void TearDown() override {
    if (stream_ != nullptr) check(cudaStreamDestroy(stream_), "cudaStreamDestroy");
  }

  std::vector<float> hand_out(Room const& room, HostBags const& bags, std::size_t dim, std::vector<float> const& values,
                              std::size_t out_size) {
    DeviceArray<std::int64_t> const offsets(bags.offsets);
    DeviceArray<float> const weights(bags.weights), from(values), out(out_size, -99);
    deduplicator_->hand_out(room.view(), {.offsets = offsets.span(), .weights = weights.span()}, dim, from.span(),
                            out.span());
    return out.all();
  }
  std::vector<float> add_up(Room const& room, HostBags const& bags, std::size_t dim, std::vector<float> const& values,
                            std::size_t sums_size) {
    DeviceArray<std::int64_t> const offsets(bags.offsets);
    DeviceArray<float> const weights(bags.weights), from(values), sums(sums_size, -99);
    deduplicator_->add_up(room.view(), {.offsets = offsets.span(), .weights = weights.span()}, dim, from.span(),
                          sums.span());
    return sums.all();
  }
  void expect_sums_of_cpu(Batch const& batch, std::size_t dim) {
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
      cpu_->hand_out(unique, bags.view(), of_unique, out);
      cpu_->add_up(unique, bags.view(), of_bags, sums);
      EXPECT_TRUE(hand_out(room, bags, dim, of_unique, out.size()) == out);
      EXPECT_TRUE(add_up(room, bags, dim, of_bags, sums.size()) == sums);
    }
  }

  std::mt19937_64 random_{5};
  std::unique_ptr<Deduplicator> cpu_ = make_cpu_deduplicator();
  cudaStream_t stream_ = nullptr;
  std::unique_ptr<CudaDeduplicator> deduplicator_;
};

TEST_F(CudaDeduplicatorTest, UniqueKeysAreThoseOfTheCpu) {
  for (std::size_t const size : {0, 1, 31, 1'000, 100'000}) {
    for (std::uint64_t const num_ids : {std::uint64_t{1}, std::uint64_t{5}, size / 3 + 1, std::uint64_t{1} << 60}) {
      for (std::uint32_t const num_tables : {1U, 3U}) {
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
  Batch const batch{.ids = {7, 9, 7, 8, 8, 6, 6}, .counts = {2, 3, 4, 0xffffffff, 9, 0xfffffff0, 0xf}};
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
      deduplicator_->take_as_unique(on_device.keys(), room.view());
      expect_same(room.download(size), take_as_unique(batch.keys()));
      auto const values = random_integers(random_, size * 4);
      EXPECT_EQ(hand_out(room, {}, 4, values, values.size()), values);
      EXPECT_EQ(add_up(room, {}, 4, values, values.size()), values);
    }
  }
}

TEST_F(CudaDeduplicatorTest, BagsGetTheSumsOfTheirKeysAndGiveThemBack) {
  for (std::size_t const dim : {1, 3, 5, 8, 64, 130, 1'024}) {
    for (std::size_t const size : {0, 1, 31, 1'000}) {
      expect_sums_of_cpu(random_batch(random_, {.size = size, .num_ids = size / 3 + 1, .num_tables = 2}), dim);
    }
  }
  expect_sums_of_cpu(random_batch(random_, {.size = 100'000, .num_ids = 30'000}), 8);
}

TEST_F(CudaDeduplicatorTest, KeysMayHaveMembersInAnyNumberOfChunks) {
  // Runs around chunks of 64 members and windows of 32 chunks.
  Batch batch;
  std::uint64_t id = 0;
  for (std::size_t const run : {64, 1, 63, 65, 127, 1, 128, 64, 2'048, 2'112, 2'113, 1, 2'049, 4'096, 1, 1, 9'999}) {
    batch.ids.insert(batch.ids.end(), run, id++);
  }
  expect_sums_of_cpu(batch, 4);
  expect_sums_of_cpu(batch, 3);
  std::shuffle(batch.ids.begin(), batch.ids.end(), random_);
  expect_sums_of_cpu(batch, 68);
}

TEST_F(CudaDeduplicatorTest, OneKeyMayHaveNearlyAllMembers) {
  Batch batch{.ids = std::vector<std::uint64_t>(200'000, 42)};
  for (std::size_t i = 0; i < batch.ids.size(); i += 997) batch.ids[i] = i;
  expect_sums_of_cpu(batch, 8);
  expect_sums_of_cpu(batch, 5);
}

TEST_F(CudaDeduplicatorTest, SumsHaveTheSameBitsInAllRunsWhateverTheAlignment) {
  constexpr std::size_t kSize = 50'000, kDim = 16;
  auto batch = random_batch(random_, {.size = kSize, .num_ids = 1'000});
  for (std::size_t i = 0; i < kSize; i += 3) batch.ids[i] = 42;
  DeviceBatch const on_device(batch);
  Room const room(on_device.keys());
  deduplicator_->deduplicate(on_device.keys(), room.view());
  auto const unique = cpu_->deduplicate(batch.keys());
  std::vector<float> values(kSize * kDim), expected(unique.size() * kDim);
  for (auto& value : values) value = std::normal_distribution<float>(0, 1)(random_);
  cpu_->add_up(unique, {}, values, expected);
  auto const sums = add_up(room, {}, kDim, values, expected.size());
  for (std::size_t i = 0; i < sums.size(); ++i) ASSERT_NEAR(sums[i], expected[i], 2e-3) << i;
  EXPECT_TRUE(add_up(room, {}, kDim, values, expected.size()) == sums);

  values.insert(values.begin(), 0);
  DeviceArray<float> const shifted(values), out(expected.size(), -99);
  deduplicator_->add_up(room.view(), {}, kDim, shifted.span().subspan(1), out.span());
  EXPECT_TRUE(out.all() == sums);
}

TEST_F(CudaDeduplicatorTest, RowsLearnFromBagsTheSameInAllRuns) {
  constexpr std::size_t kSize = 50'000, kDim = 16;
  auto batch = random_batch(random_, {.size = kSize, .num_ids = 20'000});
  for (std::size_t i = 0; i < kSize; i += 3) batch.ids[i] = 42;
  auto bags = all_kinds_of_bags(random_, kSize).back();
  // Of weights whose sum is 0 rounding is left, which Adagrad divides by its own size.
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
  of_cpu->update_bags(unique.keys(), rows_of_cpu, unique.of_keys(), bags.view(), gradients, step);
  of_cpu->gather(unique.keys(), rows_of_cpu, expected);

  DeviceBatch const on_device(batch);
  Room const room(on_device.keys());
  deduplicator_->deduplicate(on_device.keys(), room.view());
  DeviceArray<std::int64_t> const offsets(bags.offsets);
  DeviceArray<float> const weights(bags.weights), from(gradients);
  DeviceArray<std::uint32_t> const none(1, 0);
  // Keys and rows beyond those that the device knows of hold anything.
  auto const learn = [&](std::uint32_t const* num_known) {
    auto const table = make_cuda_table(options, place());
    auto const view = room.view();
    auto keys = view.keys();
    DeviceArray<RowId> const rows(kSize, RowId{0x77777777});
    table->find_or_insert(keys, rows.span(), {});
    keys.num_known = num_known == nullptr ? keys.num_known : num_known;
    table->update_bags(keys, rows.span(), {.numbers = view.numbers, .members = view.members, .begins = view.begins},
                       {.offsets = offsets.span(), .weights = weights.span()}, from.span(), step);
    DeviceArray<float> const out(kSize * kDim, 0);
    table->gather(view.keys(), rows.span(), out.span());
    static_cast<void>(table->size());
    return out.first(expected.size());
  };
  auto const learned = learn(nullptr);
  for (std::size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(learned[i], expected[i], 1e-4) << i;
  EXPECT_TRUE(learn(nullptr) == learned);
  EXPECT_TRUE(learn(none.data()) == before);
}

TEST_F(CudaDeduplicatorTest, OnlyTheKnownKeysOfABatchCount) {
  constexpr std::size_t kSize = 5'000, kDim = 4;
  auto const batch = random_batch(random_, {.size = kSize, .num_ids = 900, .num_tables = 2, .end_of_counts = 9});
  DeviceBatch const on_device(batch);
  for (std::uint32_t const num_known : {0U, 1U, 64U, 777U, 4'999U, 5'000U, 6'000U}) {
    SCOPED_TRACE(testing::Message() << num_known << " known");
    DeviceArray<std::uint32_t> const on_device_known(1, num_known);
    std::size_t const known = std::min<std::size_t>(num_known, kSize);
    auto const keys = on_device.keys(on_device_known.data());
    Room const room(keys);
    deduplicator_->take_as_unique(keys, room.view());
    expect_same(room.download(known), take_as_unique(batch.keys(known)));
    deduplicator_->deduplicate(keys, room.view());
    auto const unique = cpu_->deduplicate(batch.keys(known));
    expect_same(room.download(known), unique);

    // Of bags that are keys, and of sums, there are as many as on the CPU; others are not looked at.
    auto const of_unique = random_integers(random_, unique.size() * kDim),
               of_keys = random_integers(random_, kSize * kDim);
    std::vector<float> out(known * kDim), sums(of_unique.size());
    cpu_->hand_out(unique, {}, of_unique, out);
    cpu_->add_up(unique, {}, std::span(of_keys).first(known * kDim), sums);
    auto actual = hand_out(room, {}, kDim, of_unique, kSize * kDim);
    EXPECT_TRUE(std::ranges::equal(std::span(actual).first(out.size()), out));
    actual = add_up(room, {}, kDim, of_keys, kSize * kDim);
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
      DeviceArray<std::int64_t> const counts(num_ranks, 77);
      auto const way = route(batch.keys(), num_ranks);
      deduplicator_->route(on_device.keys(), order.span(), counts.span());
      EXPECT_TRUE(order.all() == way.order);
      EXPECT_TRUE(counts.all() == way.counts);

      std::size_t const known = size / 3;
      DeviceArray<std::uint32_t> const num_known(1, static_cast<std::uint32_t>(known));
      auto const way_of_known = route(batch.keys(known), num_ranks);
      deduplicator_->route(on_device.keys(num_known.data()), order.span(), counts.span());
      EXPECT_TRUE(order.first(known) == way_of_known.order);
      EXPECT_TRUE(counts.all() == way_of_known.counts);
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
  Batch const batch{.ids = {7, 9, 7}};
  DeviceBatch const on_device(batch);
  auto const keys = on_device.keys();
  Room const room(keys);
  DeviceArray<std::uint32_t> const ones(1, 1);
  auto with_one_table = keys, with_one_count = keys, of_other_table = keys;
  with_one_table.tables = ones.span();
  with_one_count.counts = ones.span();
  of_other_table.table = 4;
  for (auto const& wrong : {with_one_table, with_one_count, of_other_table}) {
    EXPECT_THROW(deduplicator_->deduplicate(wrong, room.view()), comm::UsageError);
    EXPECT_THROW(deduplicator_->take_as_unique(wrong, room.view()), comm::UsageError);
  }
  auto without_size = room.view(), with_few_begins = room.view();
  without_size.size = nullptr;
  with_few_begins.begins = with_few_begins.begins.first(3);
  for (auto const& wrong : {without_size, with_few_begins}) {
    EXPECT_THROW(deduplicator_->deduplicate(keys, wrong), comm::UsageError);
  }

  deduplicator_->deduplicate(keys, room.view());
  DeviceBatch const of_others({.ids = {7, 9}});
  Room const smaller(of_others.keys());
  EXPECT_THROW(deduplicator_->reorder(room.view(), ones.span(), smaller.view()), comm::UsageError);
  EXPECT_THROW(deduplicator_->reorder(without_size, ones.span(), room.view()), comm::UsageError);
  DeviceArray<float> const values(6, 1), sums(4, 1);
  auto const add_up = [&](std::size_t dim, std::size_t num_values, std::size_t num_sums) {
    deduplicator_->add_up(room.view(), {}, dim, values.span().first(num_values), sums.span().first(num_sums));
  };
  add_up(2, 6, 4);
  EXPECT_EQ(sums.all(), (std::vector<float>{2, 2, 1, 1}));
  EXPECT_THROW(add_up(2, 5, 4), comm::UsageError);
  EXPECT_THROW(add_up(2, 6, 3), comm::UsageError);
  EXPECT_THROW(add_up(1, 6, 4), comm::UsageError);
  EXPECT_THROW(add_up(0, 0, 0), comm::UsageError);
  EXPECT_THROW(deduplicator_->hand_out(room.view(), {.weights = sums.span()}, 2, sums.span(), values.span()),
               comm::UsageError);
  EXPECT_THROW(deduplicator_->hand_out(room.view(), {}, 2, sums.span().first(3), values.span()), comm::UsageError);

  DeviceArray<std::int64_t> const counts(kNumVirtualBuckets + 1, 0);
  DeviceArray<std::uint32_t> const order(3, 0);
  EXPECT_THROW(deduplicator_->route(keys, order.span(), {}), comm::UsageError);
  EXPECT_THROW(deduplicator_->route(keys, order.span(), counts.span()), comm::UsageError);
  EXPECT_THROW(deduplicator_->route(keys, order.span().first(2), counts.span().first(1)), comm::UsageError);
}

}  // namespace
}  // namespace headway::embedding
