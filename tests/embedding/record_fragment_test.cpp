// SPDX-License-Identifier: Apache-2.0

// Records of a table as bytes of a state_dict(): they come back, damage is found, and a rank imports what it owns.
//
// A record is a key with all that a table stores about it. A pending key has too few lookups for a row. A fragment has
// the records of one table in a range of virtual buckets, ranges of key hashes by which ranks divide keys. It also has
// the version of this mapping (routing_version) and the optimizer steps of the table (updates).

#include "headway/embedding/record_fragment.hpp"

#include "headway/base/status.hpp"
#include "headway/embedding/routing.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

namespace headway::embedding {
namespace {

constexpr std::size_t kDim = 2, kStateSize = 1;

/// Rows of ids 0 to 9 and two pending keys, in memory of its own.
struct Sample {
  std::vector<std::uint64_t> ids = std::vector<std::uint64_t>(10), pending_ids{70, 71};
  std::vector<std::uint32_t> counts = std::vector<std::uint32_t>(10, 3), steps = std::vector<std::uint32_t>(10, 5),
                             pending_counts{1, 2};
  std::vector<float> embeddings = std::vector<float>(10 * kDim), states = std::vector<float>(10 * kStateSize, 0.5F);

  Sample() {
    std::iota(ids.begin(), ids.end(), 0);
    std::iota(embeddings.begin(), embeddings.end(), 1.0F);
  }

  [[nodiscard]] RecordFragment fragment() const {
    return {.routing_version = kRoutingVersion,
            .updates = 7,
            .first_bucket = 0,
            .end_bucket = kNumVirtualBuckets,
            .table = 4,
            .rows = {.ids = ids,
                     .table = 4,
                     .counts = counts,
                     .steps = steps,
                     .embeddings = embeddings,
                     .states = states,
                     .dim = kDim,
                     .state_size = kStateSize},
            .pending = {.ids = pending_ids, .table = 4, .counts = pending_counts, .are_pending = true}};
  }
};

std::vector<std::byte> bytes_of(RecordFragment const& fragment) {
  std::vector<std::byte> bytes(encoded_bytes(fragment));
  encode(fragment, bytes);
  return bytes;
}

template <class T>
std::vector<T> vector_of(std::span<T const> column) {
  return {column.begin(), column.end()};
}

/// Decodes, and returns the message of the error.
std::string refusal_of(std::span<std::byte const> bytes) {
  try {
    static_cast<void>(decode(bytes));
  } catch (base::UsageError const& error) {
    return error.what();
  }
  return "";
}

/// Ids of the rows of a table.
std::vector<std::uint64_t> ids_of(Table const& table) {
  auto ids = table.list(0, kNumVirtualBuckets).ids;
  std::ranges::sort(ids);
  return ids;
}

std::unique_ptr<Table> make_table(std::size_t max_rows = TableOptions::kUnlimited) {
  TableOptions options{.dim = kDim, .max_rows = max_rows, .min_count = 3};
  options.optimizer.kind = kernels::OptimizerKind::kRowWiseAdagrad;
  return make_cpu_table(options);
}

TEST(RecordFragment, ComesBackFromItsBytes) {
  Sample const sample;
  auto const bytes = bytes_of(sample.fragment());
  auto const read = decode(bytes);
  EXPECT_EQ(read.routing_version, kRoutingVersion);
  EXPECT_EQ(read.updates, 7U);
  EXPECT_EQ(read.end_bucket, kNumVirtualBuckets);
  EXPECT_EQ(read.table, 4U);
  EXPECT_EQ(vector_of(read.rows.ids), sample.ids);
  EXPECT_EQ(vector_of(read.rows.counts), sample.counts);
  EXPECT_EQ(vector_of(read.rows.steps), sample.steps);
  EXPECT_EQ(vector_of(read.rows.embeddings), sample.embeddings);
  EXPECT_EQ(vector_of(read.rows.states), sample.states);
  EXPECT_EQ(vector_of(read.pending.ids), sample.pending_ids);
  EXPECT_EQ(vector_of(read.pending.counts), sample.pending_counts);
}

// Version 1 of the layout had no checksum. It can still be read.
TEST(RecordFragment, OfLayout1HasNoSum) {
  auto bytes = bytes_of(Sample().fragment());
  constexpr std::size_t kSumOffset = 80;  // The checksum has 8 bytes. Byte 0 is the version.
  bytes.erase(bytes.begin() + kSumOffset, bytes.begin() + kSumOffset + 8);
  bytes[0] = std::byte{1};
  EXPECT_EQ(decode(bytes).rows.ids.size(), 10U);
  bytes.pop_back();
  EXPECT_NE(refusal_of(bytes).find("truncated"), std::string::npos);
}

TEST(RecordFragment, ThatIsDamagedIsRefused) {
  auto const whole = bytes_of(Sample().fragment());
  for (std::size_t size = 0; size < whole.size(); size += 7) {
    EXPECT_FALSE(refusal_of(std::span(whole).first(size)).empty()) << size << " bytes";
  }
  for (std::size_t i = 0; i < whole.size(); ++i) {
    auto bytes = whole;
    bytes[i] ^= std::byte{0x41};
    EXPECT_FALSE(refusal_of(bytes).empty()) << "byte " << i;
  }
  auto longer = whole;
  longer.insert(longer.end(), 8, std::byte{0});
  EXPECT_FALSE(refusal_of(longer).empty());
}

TEST(RecordFragment, WithAShortColumnIsRefused) {
  Sample sample;
  sample.steps.pop_back();
  EXPECT_THROW(static_cast<void>(bytes_of(sample.fragment())), base::UsageError);
}

TEST(RecordFragment, IsImportedByItsOwners) {
  Sample const sample;
  auto const fragment = sample.fragment();
  std::vector<std::uint64_t> all;
  std::size_t num_pending = 0;
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    auto const table = make_table();
    RecordTarget const target{.table = table.get(), .table_ids = {4}};
    import_records_of_rank(fragment.rows, {&target, 1}, rank, 3);
    import_records_of_rank(fragment.pending, {&target, 1}, rank, 3);
    auto const own = ids_of(*table);
    for (auto const id : own) EXPECT_EQ(owner_of(virtual_bucket_of(hash_of({.id = id, .table = 4})), 3), rank);
    all.insert(all.end(), own.begin(), own.end());
    num_pending += table->size().pending;
  }
  std::ranges::sort(all);
  EXPECT_EQ(all, sample.ids);
  EXPECT_EQ(num_pending, 2U);
}

TEST(RecordFragment, OfAnotherTableOrWidthIsNotImported) {
  Sample const sample;
  auto const table = make_table();
  RecordTarget const of_table_9{.table = table.get(), .table_ids = {9}};
  import_records_of_rank(sample.fragment().rows, {&of_table_9, 1}, 0, 1);
  EXPECT_EQ(table->size().rows, 0U);
  RecordTarget const target{.table = table.get(), .table_ids = {4}};
  auto narrower = sample.fragment().rows;
  narrower.dim = 1;
  EXPECT_THROW(import_records_of_rank(narrower, {&target, 1}, 0, 1), base::UsageError);
}

}  // namespace
}  // namespace headway::embedding
