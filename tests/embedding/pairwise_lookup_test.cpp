// SPDX-License-Identifier: Apache-2.0
#include "headway/embedding/pairwise_lookup.hpp"

#include "sharded_table_fixture.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <condition_variable>
#include <mutex>

namespace headway::embedding {
namespace {

using namespace std::chrono_literals;

/// The rows of a rank for both merged tables of the fixture. Ids below 8 have one; their embeddings are not initial.
std::vector<ReadTable> read_tables(int rank, int size, float scale = 1) {
  std::vector<ReadTable> tables;
  for (auto const& merged : tables_with(kernels::OptimizerKind::kSgd)) {
    std::shared_ptr<Table> rows = make_cpu_table(merged.options);
    for (auto const table : merged.tables) {
      for (std::uint64_t id = 0; id < 8; ++id) {
        auto const owner =
            owner_of(virtual_bucket_of(hash_of({.id = id, .table = table})), static_cast<std::uint32_t>(size));
        if (owner != static_cast<std::uint32_t>(rank)) continue;
        std::vector<float> const embedding(merged.options.dim, scale * static_cast<float>(id + table));
        KeyStatus status;
        rows->insert_or_assign({.ids = {&id, 1}, .table = table}, embedding, {&status, 1});
      }
    }
    tables.push_back({.rows = rows, .tables = merged.tables});
  }
  return tables;
}

Outputs expand_all(PairwiseLookup& lookup, PairwiseLookup::Batch const& batch) {
  Outputs outputs;
  for (std::size_t merged = 0; merged < 2; ++merged) {
    outputs.emplace_back(lookup.num_bags(batch, merged) * (merged == 0 ? 3 : 8));
    lookup.expand(batch, merged, outputs.back());
  }
  return outputs;
}

/// Embeddings of a batch on one rank that has all rows.
Outputs expected(RankBatch const& batch, float scale = 1, bool zeros = false) {
  PairwiseLookup alone(nullptr);
  auto tables = read_tables(0, 1, scale);
  for (auto& each : tables) each.reads_unknown_as_zeros = zeros;
  alone.add_version(1, tables);
  auto const begun = alone.begin(1, batch.features());
  EXPECT_TRUE(alone.poll(*begun));
  return expand_all(alone, *begun);
}

/// Waits until a batch is finished, and answers meanwhile.
void finish(PairwiseLookup& lookup, PairwiseLookup::Batch& batch) {
  while (!lookup.poll(batch)) {
    lookup.answer();
    std::this_thread::yield();
  }
}

/// Answers until all ranks have come here.
void answer_until_all_are_here(PairwiseLookup& lookup, std::atomic<int>& num_here, int size) {
  ++num_here;
  while (num_here < size) {
    lookup.answer();
    std::this_thread::yield();
  }
}

TEST(PairwiseLookup, one_rank_gives_the_embeddings_of_a_sharded_table) {
  std::mt19937 random(1);
  auto const batch = random_batch(random);
  auto merged = tables_with(kernels::OptimizerKind::kSgd);
  auto const rows = read_tables(0, 1);
  for (std::size_t i = 0; i < 2; ++i) merged[i].existing_table = std::const_pointer_cast<Table>(rows[i].rows);
  ShardedTable sharded(merged, make_local_exchanger());
  auto const begun = sharded.begin(batch.features(), {.mode = LookupMode::kRead});
  sharded.finish(*begun);
  EXPECT_EQ(expected(batch), embedding::expand_all(sharded, *begun));
}

TEST(PairwiseLookup, ranks_that_begin_different_numbers_of_batches_get_the_embeddings_of_one_rank) {
  constexpr int kSize = 3;
  std::atomic<int> num_here = 0;
  run_groups(kSize, {}, [&](comm::Group& group) {
    PairwiseLookup lookup(&group);
    lookup.add_version(1, read_tables(group.rank(), kSize));
    std::mt19937 random(static_cast<unsigned>(group.rank()));
    for (int i = 0; i < 5 * group.rank(); ++i) {
      auto const first = random_batch(random), second = random_batch(random);
      auto const one = lookup.begin(1, first.features()), other = lookup.begin(1, second.features());
      finish(lookup, *other);
      finish(lookup, *one);
      EXPECT_EQ(expand_all(lookup, *one), expected(first));
      EXPECT_EQ(expand_all(lookup, *other), expected(second));
    }
    answer_until_all_are_here(lookup, num_here, kSize);
  });
}

TEST(PairwiseLookup, more_keys_than_fit_the_first_message_arrive) {
  std::atomic<int> num_here = 0;
  run_groups(2, {}, [&](comm::Group& group) {
    PairwiseLookup lookup(&group);
    lookup.add_version(1, read_tables(group.rank(), 2));
    RankBatch batch;
    for (std::int64_t id = 0; id < 5000; ++id) batch.items.push_back(id * (group.rank() + 1));
    batch.item_lengths = {5000};
    auto const begun = lookup.begin(1, batch.features());
    finish(lookup, *begun);
    EXPECT_EQ(expand_all(lookup, *begun), expected(batch));
    answer_until_all_are_here(lookup, num_here, 2);
  });
}

TEST(PairwiseLookup, ids_without_a_row_give_zeros_if_the_table_says_so) {
  std::atomic<int> num_here = 0;
  run_groups(2, {}, [&](comm::Group& group) {
    PairwiseLookup lookup(&group);
    auto tables = read_tables(group.rank(), 2);
    for (auto& each : tables) each.reads_unknown_as_zeros = true;
    lookup.add_version(1, std::move(tables));
    std::mt19937 random(3);
    auto const batch = random_batch(random);
    auto const begun = lookup.begin(1, batch.features());
    finish(lookup, *begun);
    EXPECT_EQ(expand_all(lookup, *begun), expected(batch, 1, true));
    EXPECT_NE(expand_all(lookup, *begun), expected(batch));
    answer_until_all_are_here(lookup, num_here, 2);
  });
}

TEST(PairwiseLookup, a_batch_reads_its_version_while_there_are_two) {
  std::atomic<int> num_here = 0;
  run_groups(2, {}, [&](comm::Group& group) {
    PairwiseLookup lookup(&group);
    lookup.add_version(1, read_tables(group.rank(), 2));
    lookup.add_version(2, read_tables(group.rank(), 2, 10));
    std::mt19937 random(4);
    auto const batch = random_batch(random);
    auto const old = lookup.begin(1, batch.features()), present = lookup.begin(2, batch.features());
    finish(lookup, *present);
    finish(lookup, *old);
    EXPECT_EQ(expand_all(lookup, *old), expected(batch));
    EXPECT_EQ(expand_all(lookup, *present), expected(batch, 10));
    answer_until_all_are_here(lookup, num_here, 2);
  });
}

TEST(PairwiseLookup, an_owner_without_the_version_is_named) {
  std::atomic<int> num_here = 0;
  run_groups(2, {}, [&](comm::Group& group) {
    PairwiseLookup lookup(&group);
    lookup.add_version(1, read_tables(group.rank(), 2));
    if (group.rank() == 0) {
      lookup.add_version(7, read_tables(0, 2));
      std::mt19937 random(5);
      auto const begun = lookup.begin(7, random_batch(random).features());
      EXPECT_EQ(lookup.missing_rank(*begun), 1);
      try {
        finish(lookup, *begun);
        ADD_FAILURE() << "version 7 was found";
      } catch (VersionMissing const& error) {
        EXPECT_STREQ(error.what(), "rank 1 has no version 7");
      }
    }
    answer_until_all_are_here(lookup, num_here, 2);
  });
}

TEST(PairwiseLookup, a_batch_that_is_destroyed_early_leaves_later_ones_right) {
  std::atomic<int> num_here = 0;
  run_groups(2, {}, [&](comm::Group& group) {
    PairwiseLookup lookup(&group);
    lookup.add_version(1, read_tables(group.rank(), 2));
    std::mt19937 random(6);
    for (int i = 0; i < 20; ++i) {
      static_cast<void>(lookup.begin(1, random_batch(random).features()));
      auto const batch = random_batch(random);
      auto const begun = lookup.begin(1, batch.features());
      finish(lookup, *begun);
      EXPECT_EQ(expand_all(lookup, *begun), expected(batch));
    }
    answer_until_all_are_here(lookup, num_here, 2);
  });
}

/// A thread sleeps until it is woken. The group may call wake() until it is destroyed, so both share it.
class Sleeper {
 public:
  void wake() {
    std::lock_guard const lock(mutex_);
    is_woken_ = true;
    changed_.notify_one();
  }
  /// @returns false: 20 s have passed
  [[nodiscard]] bool sleep() {
    std::unique_lock lock(mutex_);
    bool const was_woken = changed_.wait_for(lock, 20s, [&] { return is_woken_; });
    is_woken_ = false;
    return was_woken;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_woken_ = false;
};

TEST(PairwiseLookup, sleeping_ranks_are_woken_by_keys_and_by_rows) {
  std::atomic<int> num_finished = 0;
  run_groups(2, {}, [&](comm::Group& group) {
    auto const sleeper = std::make_shared<Sleeper>();
    PairwiseLookup lookup(&group);
    lookup.add_version(1, read_tables(group.rank(), 2));
    PairwiseLookup::BatchPtr begun;
    std::mt19937 random(7);
    auto const batch = random_batch(random);
    if (group.rank() == 0) begun = lookup.begin(1, batch.features());
    std::size_t num_answers = 0;
    while (group.rank() == 0 ? !lookup.poll(*begun) : num_answers == 0) {
      num_answers += lookup.answer();
      if (num_answers > 0) break;
      std::vector<PairwiseLookup::Batch*> batches;
      if (begun != nullptr) batches.push_back(begun.get());
      lookup.wake_on_arrival(batches, [sleeper] { sleeper->wake(); });
      bool const was_woken = sleeper->sleep();
      EXPECT_TRUE(was_woken) << "rank " << group.rank();
      if (!was_woken) break;
    }
    ++num_finished;
    while (num_finished < 2) std::this_thread::sleep_for(1ms);
  });
}

TEST(PairwiseLookup, a_lost_rank_is_named) {
  run_groups(2, {}, [&](comm::Group& group) {
    auto const look_up = [&] {
      PairwiseLookup lookup(&group);
      lookup.add_version(1, read_tables(group.rank(), 2));
      if (group.rank() == 1) return;
      std::mt19937 random(8);
      auto const begun = lookup.begin(1, random_batch(random).features());
      finish(lookup, *begun);
    };
    if (group.rank() == 1) {
      look_up();
      return;
    }
    // Any call may be the first to see that rank 1 has left.
    try {
      look_up();
      ADD_FAILURE() << "a lookup ended without the other rank";
    } catch (base::OperationError const& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("rank 1 has left"));
    }
  });
}

TEST(PairwiseLookup, bad_features_and_versions_are_named) {
  PairwiseLookup lookup(nullptr);
  lookup.add_version(1, read_tables(0, 1));
  EXPECT_THROW(lookup.add_version(1, {}), base::UsageError);
  EXPECT_THROW(static_cast<void>(lookup.begin(2, {})), base::UsageError);
  std::vector<std::int64_t> const ids{1}, lengths{2};
  std::vector<Feature> features{{.name = "f", .table = kUsers, .ids = {ids.data(), 1}, .lengths = {lengths.data(), 1}}};
  EXPECT_THROW(static_cast<void>(lookup.begin(1, features)), base::UsageError);
  features[0].table = 99;
  EXPECT_THROW(static_cast<void>(lookup.begin(1, features)), base::UsageError);
}

}  // namespace
}  // namespace headway::embedding
