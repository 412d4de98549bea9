// SPDX-License-Identifier: Apache-2.0

// Files of records: what is written comes back, whole or in parts, and damage is found.
//
// A record is a key (an id with its table's number) with all that a table stores about it. Merged tables share the
// storage of one Table. A pending key has too few lookups for a row. A file consists of blocks; each has records of a
// range of virtual buckets, which are ranges of key hashes by which ranks divide keys.

#include "headway/embedding/record_file.hpp"

#include "headway/base/status.hpp"
#include "headway/embedding/routing.hpp"
#include "temporary_directory.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace headway::embedding {
namespace {

constexpr std::uint32_t kUsers = 1, kItems = 2, kOthers = 3;  // Numbers of tables.
constexpr std::size_t kDim = 3;

std::unique_ptr<Table> make_table(kernels::OptimizerKind optimizer = kernels::OptimizerKind::kAdam) {
  TableOptions options{.dim = kDim, .initializer = Initializer::uniform(-1, 1, 5), .min_count = 2};
  options.optimizer.kind = optimizer;
  return make_cpu_table(options);
}

/// A table with 1,000 rows of each of two merged tables, of which a third was trained, and 300 pending keys.
std::unique_ptr<Table> trained_table() {
  auto table = make_table();
  table->begin_step(4, 4);
  for (auto const table_id : {kUsers, kItems}) {
    std::vector<std::uint64_t> ids(1'000), pending(150);
    std::iota(ids.begin(), ids.end(), 0);
    std::iota(pending.begin(), pending.end(), 5'000);
    std::vector<std::uint32_t> counts(1'000);
    for (std::size_t i = 0; i < counts.size(); ++i) counts[i] = 2 + static_cast<std::uint32_t>(i % 7);
    std::vector<RowId> rows(1'000), none(150);
    table->find_or_insert({.ids = ids, .table = table_id, .counts = counts}, rows, {});
    table->find_or_insert({.ids = pending, .table = table_id}, none, {});
    std::vector<float> const gradients(333 * kDim, 0.5F);
    table->update({.ids = std::span(ids).first(333), .table = table_id}, std::span(rows).first(333), gradients,
                  {.learning_rate = 0.1, .number = 1});
  }
  return table;
}

/// All that a table stores, by (table, id): count, step, embedding, state. Pending keys have only a count.
using Contents = std::map<std::pair<std::uint32_t, std::uint64_t>, std::vector<float>>;

void add_contents(Contents& contents, Table const& table, bool with_states = true) {
  auto const records = table.export_records(table.list(0, kNumVirtualBuckets).keys());
  std::size_t const width = table.state_size();
  for (std::size_t i = 0; i < records.ids.size(); ++i) {
    auto& values = contents[{records.tables[i], records.ids[i]}];
    EXPECT_TRUE(values.empty()) << "two tables have key " << records.ids[i];
    values = {static_cast<float>(records.counts[i]), static_cast<float>(records.steps[i])};
    for (std::size_t column = 0; column < kDim; ++column) values.push_back(records.embeddings[i * kDim + column]);
    for (std::size_t column = 0; with_states && column < width; ++column) {
      values.push_back(records.states[i * width + column]);
    }
  }
  auto const pending = table.list_pending(0, kNumVirtualBuckets);
  for (std::size_t i = 0; i < pending.ids.size(); ++i) {
    EXPECT_TRUE(
        contents
            .emplace(std::pair(pending.tables[i], pending.ids[i]), std::vector{static_cast<float>(pending.counts[i])})
            .second);
  }
}

Contents contents_of(Table const& table, bool with_states = true) {
  Contents contents;
  add_contents(contents, table, with_states);
  return contents;
}

class RecordFileTest : public testing::Test {
 protected:
  [[nodiscard]] std::string path() const { return directory_.path() / "records.bin"; }

  /// Writes the table in 8 ranges of buckets and blocks of 100 records.
  std::vector<RecordSource> write(Table const& table) {
    RecordFileWriter writer(path(), 100);
    constexpr std::uint32_t kWidth = kNumVirtualBuckets / 8;
    // Pending keys come first in the file. Loading must import rows before them.
    for (bool const are_pending : {true, false}) {
      for (std::uint32_t first = 0; first < kNumVirtualBuckets; first += kWidth) {
        writer.write(table, are_pending, first, first + kWidth);
      }
    }
    std::vector<RecordSource> sources;
    for (auto const& block : writer.finish()) {
      sources.push_back({.path = path(), .block = block, .dim = kDim, .state_size = table.state_size()});
    }
    return sources;
  }

 private:
  TemporaryDirectory directory_;
};

TEST_F(RecordFileTest, AnyNumberOfRanksReadsWhatWasWritten) {
  auto const table = trained_table();
  auto const sources = write(*table);
  EXPECT_GT(sources.size(), 20U);
  auto const expected = contents_of(*table);
  EXPECT_EQ(expected.size(), 2'300U);
  for (std::uint32_t const num_ranks : {1, 2, 3}) {
    Contents all;
    for (std::uint32_t rank = 0; rank < num_ranks; ++rank) {
      // The two tables no longer share storage, and the first is merged with another one. RecordTarget::table_ids are
      // the tables whose records a target takes.
      auto const users = make_table(), items = make_table();
      std::vector<RecordTarget> const targets{{.table = users.get(), .table_ids = {kOthers, kUsers}},
                                              {.table = items.get(), .table_ids = {kItems}}};
      load_records(sources, targets, rank, num_ranks);
      add_contents(all, *users);
      add_contents(all, *items);
    }
    EXPECT_EQ(all, expected) << num_ranks << " ranks";
  }
}

TEST_F(RecordFileTest, ABlockTellsItsBuckets) {
  auto const table = trained_table();
  for (auto const& source : write(*table)) {
    EXPECT_LE(source.block.num_keys, 100U);
    auto const records = read_records(source);
    ASSERT_EQ(records.ids.size(), source.block.num_keys);
    for (std::size_t i = 0; i < records.ids.size(); ++i) {
      auto const bucket = virtual_bucket_of(hash_of({.id = records.ids[i], .table = records.tables[i]}));
      EXPECT_GE(bucket, source.block.first_bucket);
      EXPECT_LT(bucket, source.block.end_bucket);
    }
  }
}

TEST_F(RecordFileTest, OtherTablesAreDroppedAndStatesMayBeNew) {
  auto const table = trained_table();
  auto const sources = write(*table);
  auto const fresh = make_table(kernels::OptimizerKind::kAdagrad);
  // initial_state replaces the states of the file, which are Adam's.
  std::vector<RecordTarget> const targets{{.table = fresh.get(), .table_ids = {kItems}, .initial_state = 0.25F}};
  load_records(sources, targets, 0, 1);
  Contents expected = contents_of(*table, false);
  std::erase_if(expected, [](auto const& each) { return each.first.first != kItems; });
  EXPECT_EQ(contents_of(*fresh, false), expected);
  auto const records = fresh->export_records(fresh->list(0, kNumVirtualBuckets).keys());
  EXPECT_EQ(records.states, std::vector<float>(1'000 * kDim, 0.25F));
}

TEST_F(RecordFileTest, ATableWithoutAnOptimizerTakesNoStates) {
  auto const table = trained_table();
  auto const sources = write(*table);
  auto const plain = make_table(kernels::OptimizerKind::kSgd);
  std::vector<RecordTarget> const targets{{.table = plain.get(), .table_ids = {kUsers, kItems}}};
  load_records(sources, targets, 0, 1);
  EXPECT_EQ(contents_of(*plain), contents_of(*table, false));

  auto const back = make_table();
  std::vector<RecordTarget> const wider{{.table = back.get(), .table_ids = {kUsers, kItems}}};
  EXPECT_THROW(load_records(write(*plain), wider, 0, 1), base::UsageError) << "there are no states to load";
}

TEST_F(RecordFileTest, DamageIsFound) {
  auto const sources = write(*trained_table());
  auto const& last = sources.back();
  auto const message_of = [&] {
    try {
      static_cast<void>(read_records(last));
    } catch (std::exception const& error) {
      return std::string(error.what());
    }
    return std::string("nothing was found");
  };
  EXPECT_EQ(message_of(), "nothing was found");
  {
    std::fstream file(path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(last.block.offset + last.block.num_bytes / 2));
    char byte = 0;
    file.get(byte);
    file.seekp(-1, std::ios::cur);
    file.put(static_cast<char>(byte ^ 4));
  }
  EXPECT_NE(message_of().find("records.bin was altered"), std::string::npos) << message_of();
  std::filesystem::resize_file(path(), last.block.offset + last.block.num_bytes - 5);
  EXPECT_NE(message_of().find("records.bin is truncated"), std::string::npos) << message_of();
  std::filesystem::remove(path());
  EXPECT_NE(message_of().find("No such file"), std::string::npos) << message_of();
}

TEST_F(RecordFileTest, SizesThatDoNotFitAreRefusedBeforeMemoryIsTaken) {
  auto const sources = write(*trained_table());
  auto const expect_refused = [&](auto change) {
    auto bad = sources.back();
    change(bad);
    EXPECT_THROW(static_cast<void>(read_records(bad)), std::runtime_error);
  };
  expect_refused([](auto& bad) { bad.block.num_keys = std::uint64_t{1} << 40; });
  expect_refused([](auto& bad) { bad.state_size += std::size_t{1} << 61; });
  expect_refused([](auto& bad) { bad.dim += 1; });
  expect_refused([](auto& bad) { bad.block.offset = ~std::uint64_t{0} - 10; });
  expect_refused([](auto& bad) {
    bad.block.num_keys = std::uint64_t{1} << 34;
    // Bytes of a record: 20 for id, table, count and step, then floats.
    bad.block.num_bytes = bad.block.num_keys * (20 + 4 * (bad.dim + bad.state_size));
  });
  EXPECT_THROW(RecordFileWriter(path(), 0), base::UsageError);
  EXPECT_NO_THROW(static_cast<void>(read_records(sources.back()))) << "the file was not emptied";
}

TEST_F(RecordFileTest, ADiskThatIsFullIsReported) {
  auto const table = trained_table();
  RecordFileWriter full("/dev/full", 100);
  EXPECT_THROW(full.write(*table, false, 0, kNumVirtualBuckets), base::SystemError);
  RecordFileWriter one_block("/dev/full");
  one_block.write(*table, true, 0, kNumVirtualBuckets);
  EXPECT_THROW(one_block.finish(), base::SystemError);
  EXPECT_THROW(one_block.finish(), base::UsageError) << "it does not forget the failure";
  EXPECT_THROW(full.finish(), base::UsageError);
  EXPECT_THROW(full.write(*table, false, 0, kNumVirtualBuckets), base::UsageError);
  EXPECT_THROW(RecordFileWriter("/no/such/folder/records.bin"), base::SystemError);
}

}  // namespace
}  // namespace headway::embedding
