// SPDX-License-Identifier: Apache-2.0

// The BatchDevice of a CUDA device: memory, unique keys, messages and streams, compared with the host. Its calls on
// values are in batch_device_values_test.cpp.
//
// The known keys of a batch are its valid prefix, whose length only the device may know (Keys::num_known). Likewise,
// UniqueBlocks::size is set only if the host knows the number of unique keys; size_on_device always has it.

#include "batch_device_fixture.hpp"
#include "headway/base/status.hpp"
#include "headway/embedding/routing.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <list>
#include <optional>
#include <thread>
#include <utility>

namespace headway::embedding {
namespace {

/// Copies unique keys to the host. @param num_keys number of known keys of the batch
UniqueKeys download(UniqueBlocks const& unique, std::size_t num_keys) {
  std::size_t const size = download(unique.size_on_device).at(0);
  auto const first = [](auto const& block, std::size_t count) { return download(block.first(count)); };
  return {.ids = first(unique.ids, size),
          .tables = first(unique.tables, unique.tables.empty() ? 0 : size),
          .table = unique.table,
          .counts = first(unique.counts, size),
          .inverse_indices = first(unique.inverse_indices, num_keys),
          .csr_indices = first(unique.csr_indices, num_keys),
          .csr_offsets = first(unique.csr_offsets, size + 1)};
}

/// Host work on a stream that lasts until release(), at most 20 s.
class Hold {
 public:
  explicit Hold(cudaStream_t stream) {
    base::check_cuda(cudaLaunchHostFunc(
                         stream, [](void* self) { static_cast<Hold*>(self)->run(); }, this),
                     "cudaLaunchHostFunc");
  }
  Hold(Hold const&) = delete;
  Hold& operator=(Hold const&) = delete;
  ~Hold() {
    release();
    while (!is_over_) std::this_thread::yield();
  }

  void release() { is_released_ = true; }
  [[nodiscard]] bool is_over() const { return is_over_; }

 private:
  void run() {
    auto const end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!is_released_ && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    is_over_ = true;
  }

  std::atomic<bool> is_released_ = false, is_over_ = false;
};

TEST_F(CudaBatchDeviceTest, BlocksAreAlignedAndComeFromTheGivenFunction) {
  EXPECT_FALSE(device_->is_host());
  EXPECT_TRUE(device_->block<float>(0).empty());
  for (std::size_t const size : {1, 7, 100'000}) {
    auto const block = device_->block<float>(size);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block.data()) % 64, 0);
    device_->fill(block.span, 3);
    EXPECT_EQ(download(block), std::vector<float>(size, 3));
  }
  DeviceArray<char> const memory(4'096, 0);
  std::size_t num_calls = 0;
  auto const other = make_cuda_batch_device(place(), [&](std::size_t num_bytes) -> std::shared_ptr<void> {
    EXPECT_LE(num_bytes, memory.span().size());
    ++num_calls;
    return {std::shared_ptr<void>(), memory.data()};
  });
  EXPECT_EQ(static_cast<void*>(other->block<double>(5).data()), memory.data());
  EXPECT_EQ(num_calls, 1);
}

TEST_F(CudaBatchDeviceTest, ManyPiecesOfAnyAlignmentAreCopied) {
  for (std::size_t const num_pieces : {0, 1, 2, 64, 200}) {
    for (std::size_t const unit : {1, 4, 16}) {
      SCOPED_TRACE(testing::Message() << num_pieces << " pieces, unit " << unit);
      std::vector<CopyPiece> pieces;
      std::vector<std::pair<std::size_t, std::size_t>> ranges;  // Offset and size of each piece.
      std::size_t end = 0;
      for (std::size_t i = 0; i < num_pieces; ++i) {
        std::size_t const size = i % 5 == 0 ? i % 2 : i == 33 ? 1'000'001 : random_() % 3'000;
        end += unit;
        ranges.emplace_back(end, size);
        end = (end + size + unit - 1) / unit * unit;
      }
      auto const values = random_numbers<std::uint8_t>(end);
      // With unit 1, source and destination also differ in their alignment.
      std::size_t const shift = unit == 1 ? 3 : 0;
      DeviceArray<std::uint8_t> const from(values), to(end + shift, 0xee);
      std::vector<std::uint8_t> expected(end + shift, 0xee);
      for (auto const& [offset, size] : ranges) {
        pieces.push_back({.to = to.data() + offset + shift, .from = from.data() + offset, .num_bytes = size});
        std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(offset), size,
                    expected.begin() + static_cast<std::ptrdiff_t>(offset + shift));
      }
      device_->copy(pieces);
      EXPECT_TRUE(to.all() == expected);
    }
  }
}

TEST_F(CudaBatchDeviceTest, EncodedKeysAreDecoded) {
  std::list<DeviceBatch> batches;
  std::vector<HostBatch> on_host;
  std::size_t num_keys = 0;
  for (std::size_t i = 0; i < 200; ++i) {
    std::size_t const size = i < 2 ? i : random_() % 700;
    on_host.push_back(random_batch(
        random_, {.size = size, .num_ids = 9, .num_tables = i % 2 == 0 ? 1U : 5U, .end_of_counts = 1ULL << 32}));
    batches.emplace_back(on_host.back());
    num_keys += size;
  }
  // One word before the first key: the words of keys are aligned to 8 bytes only.
  DeviceArray<std::uint64_t> const words(2 * num_keys + 1, 77), ids(num_keys, 0);
  DeviceArray<std::uint32_t> const tables(num_keys, 0), counts(num_keys, 0);
  std::vector<EncodePiece> encodes;
  std::vector<DecodePiece> decodes;
  std::vector<std::uint64_t> expected_words{77}, expected_ids;
  std::vector<std::uint32_t> expected_tables, expected_counts;
  for (auto const& batch : batches) {
    auto const& host = on_host[encodes.size()];
    std::size_t const first = expected_ids.size();
    encodes.push_back({.keys = batch.keys(), .words = words.data() + 1 + 2 * first});
    decodes.push_back({.words = words.data() + 1 + 2 * first,
                       .num_keys = host.ids.size(),
                       .ids = ids.data() + first,
                       .tables = tables.data() + first,
                       .counts = counts.data() + first});
    for (std::size_t i = 0; i < host.ids.size(); ++i) {
      auto const key = host.keys()[i];
      expected_words.push_back(key.id);
      expected_words.push_back(key.table | std::uint64_t{host.counts[i]} << 32);
      expected_ids.push_back(key.id);
      expected_tables.push_back(key.table);
      expected_counts.push_back(host.counts[i]);
    }
  }
  device_->encode(encodes);
  device_->decode(decodes);
  EXPECT_TRUE(words.all() == expected_words);
  EXPECT_TRUE(ids.all() == expected_ids);
  EXPECT_TRUE(tables.all() == expected_tables);
  EXPECT_TRUE(counts.all() == expected_counts);
  // encode() needs the counts of the keys.
  HostBatch const without_counts{.ids = {1, 2}};
  DeviceBatch const bad(without_counts);
  EXPECT_THROW(device_->encode(std::vector{EncodePiece{.keys = bad.keys(), .words = words.data()}}), base::UsageError);
}

TEST_F(CudaBatchDeviceTest, ValuesAreWrittenAndRead) {
  for (std::size_t const size : {0, 1, 255, 256, 257, 1'000}) {
    auto const values = random_integers(random_, size);
    auto const block = device_->block<float>(size);
    device_->write(values, block.span);
    EXPECT_EQ(device_->read(std::span<float const>(block.span)), values);
  }
  DeviceArray<double> const doubles(std::vector<double>{1.5, -2});
  DeviceArray<std::uint64_t> const words(std::vector<std::uint64_t>{7, 1ULL << 63});
  EXPECT_EQ(device_->read(std::span<double const>(doubles.span())), doubles.all());
  EXPECT_EQ(device_->read(std::span<std::uint64_t const>(words.span())), words.all());
  device_->clear(std::as_writable_bytes(words.span().first(1)));
  device_->clear({});
  EXPECT_EQ(words.all(), (std::vector<std::uint64_t>{0, 1ULL << 63}));
}

TEST_F(CudaBatchDeviceTest, SizesAreAddedToTotalsThatMayRepeat) {
  auto const sizes = random_numbers<std::uint32_t>(200);
  DeviceArray<std::uint32_t> const on_device(sizes);
  DeviceArray<std::uint64_t> const totals(3, 1ULL << 40);
  std::vector<std::uint64_t> expected(3, 1ULL << 40);
  std::vector<SizeTerm> terms;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    terms.push_back({.size = on_device.data() + i, .total = totals.data() + i % 3});
    expected[i % 3] += sizes[i];
  }
  device_->add_sizes(terms);
  EXPECT_EQ(totals.all(), expected);
}

TEST_F(CudaBatchDeviceTest, ColumnsAreInterleaved) {
  for (std::size_t const num_columns : {0, 1, 3, 200}) {
    for (std::size_t const size : {0, 1, 300}) {
      std::list<DeviceArray<std::int64_t>> columns;
      std::vector<std::int64_t const*> pointers;
      std::vector<std::int64_t> expected(num_columns * size);
      for (std::size_t j = 0; j < num_columns; ++j) {
        auto const numbers = random_numbers<std::int64_t>(size);
        for (std::size_t i = 0; i < size; ++i) expected[i * num_columns + j] = numbers[i];
        pointers.push_back(columns.emplace_back(numbers).data());
      }
      DeviceArray<std::int64_t> const out(expected.size(), -1);
      device_->interleave(pointers, size, out.data());
      EXPECT_EQ(out.all(), expected);
    }
  }
}

TEST_F(CudaBatchDeviceTest, NumbersAreFetchedAndOutliveTheDevice) {
  std::list<std::pair<std::unique_ptr<HostCopy>, std::vector<std::int64_t>>> copies;
  for (std::size_t i = 0; i < 100; ++i) {
    std::size_t const size = i < 2 ? i : random_() % 2'000;
    auto const numbers = random_numbers<std::int64_t>(size);
    DeviceArray<std::int64_t> const from(numbers);
    auto const block = device_->block<std::int64_t>(size);
    device_->copy(std::vector{CopyPiece{.to = block.data(), .from = from.data(), .num_bytes = size * 8}});
    copies.emplace_back(device_->fetch(block, {}), numbers);
    if (i % 3 == 0) copies.pop_front();  // Without wait().
  }
  device_.reset();
  for (auto const& [copy, numbers] : copies) {
    EXPECT_TRUE(std::ranges::equal(copy->wait(), numbers));
    EXPECT_TRUE(std::ranges::equal(copy->wait(), numbers));
  }
}

TEST_F(CudaBatchDeviceTest, AFetchWaitsForWorkBeforeItAndNotForWorkAfterIt) {
  DeviceArray<std::int64_t> const from(std::vector<std::int64_t>{42, 43}), none(2, 0);
  auto const numbers = device_->block<std::int64_t>(2);
  std::vector const copies{CopyPiece{.to = numbers.data(), .from = from.data(), .num_bytes = 16}};
  cudaStream_t other = nullptr;
  base::check_cuda(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  cudaEvent_t written = nullptr;
  base::check_cuda(cudaEventCreateWithFlags(&written, cudaEventDisableTiming), "cudaEventCreate");
  auto const on_other = make_cuda_batch_device({.device = 0, .current_stream = [other] { return other; }});
  // The first fetch allocates memory, for which CUDA may wait for the device.
  static_cast<void>(device_->fetch(numbers, {}));
  // The numbers are written on the caller's stream, or on a stream that the fetch is told to wait for.
  for (bool const is_own_stream : {true, false}) {
    device_->copy(std::vector{CopyPiece{.to = numbers.data(), .from = none.data(), .num_bytes = 16}});
    base::check_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    Hold before(is_own_stream ? stream_ : other);
    (is_own_stream ? device_ : on_other)->copy(copies);
    base::check_cuda(cudaEventRecord(written, other), "cudaEventRecord");
    auto const copy = device_->fetch(numbers, [&](CudaStream stream) {
      base::check_cuda(cudaStreamWaitEvent(stream, written), "cudaStreamWaitEvent");
    });
    Hold after(stream_);
    before.release();
    EXPECT_TRUE(std::ranges::equal(copy->wait(), std::vector<std::int64_t>{42, 43}));
    EXPECT_FALSE(after.is_over()) << "the fetch has waited for work that was enqueued after it";
  }
  base::check_cuda(cudaStreamSynchronize(other), "cudaStreamSynchronize");
  base::check_cuda(cudaEventDestroy(written), "cudaEventDestroy");
  base::check_cuda(cudaStreamDestroy(other), "cudaStreamDestroy");
}

TEST_F(CudaBatchDeviceTest, UniqueKeysAreThoseOfTheCpu) {
  for (std::size_t const size : {0, 1, 1'000}) {
    for (std::uint32_t const num_tables : {1U, 3U}) {
      for (bool const is_known_to_host : {false, true}) {
        SCOPED_TRACE(testing::Message() << size << " keys, tables " << num_tables << " known " << is_known_to_host);
        auto const batch =
            random_batch(random_, {.size = size, .num_ids = 300, .num_tables = num_tables, .end_of_counts = 9});
        DeviceBatch const on_device(batch);
        std::size_t const num_known = is_known_to_host ? size : size / 3;
        DeviceArray<std::uint32_t> const known(1, static_cast<std::uint32_t>(num_known));
        auto keys = on_device.keys(is_known_to_host ? nullptr : known.data());
        auto const unique = device_->deduplicate(keys);
        EXPECT_EQ(unique.ids.size(), size);
        EXPECT_FALSE(unique.size.has_value());
        EXPECT_TRUE(unique.are_unique);
        auto const expected = cpu_->deduplicate(batch.keys(num_known));
        expect_same(download(unique, num_known), expected);

        keys.are_unique = num_tables == 3;
        auto const each = device_->from_unique(keys);
        EXPECT_EQ(each.size, is_known_to_host ? std::optional(size) : std::nullopt);
        EXPECT_EQ(each.are_unique, keys.are_unique);
        expect_same(download(each, num_known), from_unique(batch.keys(num_known)));

        for (std::uint32_t const num_ranks : {1U, 5U}) {
          auto with_size = unique;
          if (num_ranks == 1) with_size.size = expected.size();
          auto const [sorted, counts] = device_->sort_by_owner(with_size, num_ranks);
          auto const by_owner = route(expected.keys(), num_ranks);
          EXPECT_EQ(sorted.size, with_size.size);
          EXPECT_EQ(download(counts), by_owner.counts);
          expect_same(download(sorted, num_known), reorder(expected, by_owner.order));
        }
      }
    }
  }
}

TEST_F(CudaBatchDeviceTest, ValuesAreExpandedAndReduced) {
  for (std::size_t const dim : {3, 8}) {
    for (std::size_t const size : {0, 1, 500}) {
      auto const batch = random_batch(random_, {.size = size, .num_ids = 100});
      DeviceBatch const on_device(batch);
      auto const expected = cpu_->deduplicate(batch.keys());
      auto unique = device_->deduplicate(on_device.keys());
      unique.size = expected.size();
      for (auto const& bags : all_kinds_of_bags(random_, size)) {
        auto const of_unique = random_integers(random_, expected.size() * dim);
        auto const of_bags = random_integers(random_, bags.size(size) * dim);
        std::vector<float> out(of_bags.size()), sums(of_unique.size());
        cpu_->expand(expected, bags.view(), of_unique, out);
        cpu_->reduce(expected, bags.view(), of_bags, sums);
        DeviceArray<std::int64_t> const offsets(bags.offsets);
        DeviceArray<float> const weights(bags.weights), unique_values(of_unique), bag_values(of_bags),
            device_out(out.size(), -99), device_sums(sums.size(), -99);
        Bags const view{.offsets = offsets.span(), .weights = weights.span()};
        device_->expand(unique, view, dim, unique_values.span(), device_out.span());
        device_->reduce(unique, view, dim, bag_values.span(), device_sums.span());
        EXPECT_EQ(device_out.all(), out);
        EXPECT_EQ(device_sums.all(), sums);
      }
    }
  }
}

TEST_F(CudaBatchDeviceTest, FeaturesAreJoinedAndTablesMade) {
  std::vector<std::int64_t> const ids{7, 9, 4}, lengths{2, 0, 1};
  DeviceArray<std::int64_t> const device_ids(ids), device_lengths(lengths), offsets(4, -1);
  DeviceArray<std::uint64_t> const joined(3, 0);
  DeviceArray<std::uint32_t> const tables(3, 0);
  device_->join(std::vector{Feature{.name = "clicks",
                                    .table = 6,
                                    .pooling = Pooling::kSum,
                                    .ids = {.data = device_ids.data(), .size = 3},
                                    .lengths = {.data = device_lengths.data(), .size = 3}}},
                {.ids = joined.span(), .tables = tables.span(), .offsets = offsets.span()});
  EXPECT_EQ(joined.all(), (std::vector<std::uint64_t>{7, 9, 4}));
  EXPECT_EQ(tables.all(), (std::vector<std::uint32_t>{6, 6, 6}));
  EXPECT_EQ(offsets.all(), (std::vector<std::int64_t>{0, 2, 2, 3}));
  auto const table = device_->make_table({.dim = 4});
  DeviceArray<RowId> const rows(3, RowId::kNone);
  table->find_or_insert({.ids = joined.span(), .table = 6}, rows.span(), {});
  EXPECT_EQ(table->size().rows, 3);
}

TEST_F(CudaBatchDeviceTest, AnotherStreamWaitsForARecordedPoint) {
  cudaStream_t other = nullptr;
  base::check_cuda(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  auto const on_other = make_cuda_batch_device({.device = 0, .current_stream = [other] { return other; }});
  DeviceArray<float> const values(1'000, 1);
  // The first launch of a kernel loads it, for which CUDA may wait for the device.
  device_->fill(values.span(), 1);
  device_->scale(values.span(), 1);
  base::check_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  std::vector<float> read;
  {
    Hold hold(stream_);
    device_->fill(values.span(), 2);
    auto point = device_->record();
    on_other->wait_for(point);
    on_other->wait_for(nullptr);
    point.reset();  // Enqueued waits do not need it.
    on_other->scale(values.span(), 5);
    EXPECT_EQ(cudaStreamQuery(other), cudaErrorNotReady);
    static_cast<void>(cudaGetLastError());  // Otherwise the check of a later launch might report "not ready".
    hold.release();
    read = on_other->read(std::span<float const>(values.span()));
  }
  EXPECT_EQ(read, std::vector<float>(1'000, 10));
  base::check_cuda(cudaStreamDestroy(other), "cudaStreamDestroy");
}

}  // namespace
}  // namespace headway::embedding
