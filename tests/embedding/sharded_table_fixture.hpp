// SPDX-License-Identifier: Apache-2.0

// Batches, tables and ranks for tests of ShardedTable. A merged table is several tables of equal options that share
// storage. An Exchanger is how the ranks exchange bytes: start() begins an all-to-all, send() and receive() a message.

#pragma once

#include "headway/base/status.hpp"
#include "headway/comm/group.hpp"
#include "headway/embedding/group_exchanger.hpp"
#include "headway/embedding/routing.hpp"
#include "headway/embedding/sharded_table.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

namespace headway::embedding {

inline constexpr std::uint32_t kUsers = 1, kTags = 2, kItems = 7;  ///< Ids of tables; the first two are merged.
inline constexpr std::size_t kNumLists = 5;  ///< Lists of ids per feature, one for each sample of a batch.

/// Features of one rank's batch, with their memory.
struct RankBatch {
  std::vector<std::int64_t> users, tags, items;
  std::vector<std::int64_t> user_lengths, tag_lengths, item_lengths;
  std::vector<float> tag_weights;
  std::vector<std::vector<float>> gradients;  ///< By merged table: (bags, dim).

  [[nodiscard]] std::vector<Feature> features() const {
    auto const integers = [](std::vector<std::int64_t> const& of) { return Integers{of.data(), of.size()}; };
    return {{.name = "user", .table = kUsers, .ids = integers(users), .lengths = integers(user_lengths)},
            {.name = "tags",
             .table = kTags,
             .pooling = Pooling::kSum,
             .ids = integers(tags),
             .lengths = integers(tag_lengths),
             .weights = tag_weights},
            {.name = "items",
             .table = kItems,
             .pooling = Pooling::kSum,
             .ids = integers(items),
             .lengths = integers(item_lengths)}};
  }
};

/// Two merged tables: users and tags with dim 3, items with dim 8.
inline std::vector<MergedTable> tables_with(kernels::OptimizerKind optimizer) {
  TableOptions narrow{.dim = 3, .initializer = Initializer::uniform(-1, 1, 5)};
  narrow.optimizer.kind = optimizer;
  TableOptions wide = narrow;
  wide.dim = 8;
  return {{.options = narrow, .tables = {kUsers, kTags}}, {.options = wide, .tables = {kItems}}};
}

/// Random ids, of which many repeat. Gradients and weights are small integers, so their sums are exact in any order.
inline RankBatch random_batch(std::mt19937& random) {
  RankBatch batch;
  auto const fill = [&](std::vector<std::int64_t>& ids, std::vector<std::int64_t>& lengths) {
    for (std::size_t list = 0; list < kNumLists; ++list) {
      lengths.push_back(random() % 4);
      for (std::int64_t i = 0; i < lengths.back(); ++i) ids.push_back(random() % 12);
    }
  };
  fill(batch.users, batch.user_lengths);
  fill(batch.tags, batch.tag_lengths);
  fill(batch.items, batch.item_lengths);
  for (std::size_t i = 0; i < batch.tags.size(); ++i) batch.tag_weights.push_back(static_cast<float>(random() % 3));
  // Users are not pooled: each id is a bag. Tags and items have a bag per list.
  for (auto const& [bags, dim] : {std::pair(batch.users.size() + kNumLists, 3), std::pair(kNumLists, 8)}) {
    auto& gradients = batch.gradients.emplace_back();
    for (std::size_t i = 0; i < bags * static_cast<std::size_t>(dim); ++i) {
      gradients.push_back(static_cast<float>(random() % 5) - 2);
    }
  }
  return batch;
}

/// One batch with all lists of several ranks. Each feature has the ranks' lists one after the other.
inline RankBatch join(std::vector<RankBatch> const& batches) {
  RankBatch all;
  auto const append = [](auto& to, auto const& from) { to.insert(to.end(), from.begin(), from.end()); };
  for (auto const& each : batches) {
    append(all.users, each.users), append(all.user_lengths, each.user_lengths);
    append(all.tags, each.tags), append(all.tag_lengths, each.tag_lengths);
    append(all.items, each.items), append(all.item_lengths, each.item_lengths);
    append(all.tag_weights, each.tag_weights);
  }
  all.gradients.resize(2);
  // The first merged table has the bags of all users, then those of all tags, which are a rank's last kNumLists bags.
  for (auto const& each : batches) {
    append(all.gradients[0], std::vector(each.gradients[0].begin(), each.gradients[0].end() - kNumLists * 3));
    append(all.gradients[1], each.gradients[1]);
  }
  for (auto const& each : batches) {
    append(all.gradients[0], std::vector(each.gradients[0].end() - kNumLists * 3, each.gradients[0].end()));
  }
  return all;
}

/// Embeddings of the bags, by merged table: (bags, dim).
using Outputs = std::vector<std::vector<float>>;

inline Outputs expand_all(ShardedTable& tables, ShardedTable::Batch const& batch) {
  Outputs outputs;
  for (std::size_t merged = 0; merged < tables.num_tables(); ++merged) {
    outputs.emplace_back(batch.num_bags(merged) * tables.table(merged).dim());
    tables.expand(batch, merged, outputs.back());
  }
  return outputs;
}

/// Returns gradients and applies half of them at rate 0.5.
inline void train(ShardedTable& tables, ShardedTable::Batch& batch, Outputs const& gradients, std::uint64_t step) {
  std::vector<std::span<float const>> const views(gradients.begin(), gradients.end());
  tables.return_gradients(batch, views);
  tables.apply_gradients(step, {.rate = 0.5}, 2);
}

/// Runs `body` on `size` ranks, each in a thread with a group of `options`. An exception of one fails the test.
inline void run_groups(int size, comm::GroupOptions options, std::function<void(comm::Group&)> const& body) {
  options.transport = comm::Transport::kInproc;
  comm::MemoryStore store;
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        auto const group = comm::Group::connect(rank, size, store, options);
        body(*group);
      } catch (std::exception const& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  }
}

/// The same for a body that takes its rank and an exchanger.
inline void run_ranks(int size, std::function<void(int rank, std::unique_ptr<Exchanger>)> const& body) {
  run_groups(size, {}, [&](comm::Group& group) { body(group.rank(), std::make_unique<GroupExchanger>(group)); });
}

/// All that tables store, by (table, id): count, step, embedding, optimizer state.
using Contents = std::map<std::pair<std::uint32_t, std::uint64_t>, std::vector<float>>;

inline void add_contents(Contents& contents, Table& table) {
  auto const listed = table.list(0, kNumVirtualBuckets);
  auto const records = table.export_records(listed.keys());
  for (std::size_t i = 0; i < records.ids.size(); ++i) {
    auto& values = contents[{records.tables[i], records.ids[i]}];
    EXPECT_TRUE(values.empty()) << "two ranks have key " << records.ids[i];
    values = {static_cast<float>(records.counts[i]), static_cast<float>(records.steps[i])};
    auto const of_row = [i](std::vector<float> const& all, std::size_t width) {
      return std::span(all).subspan(i * width, width);
    };
    for (float const value : of_row(records.embeddings, table.dim())) values.push_back(value);
    for (float const value : of_row(records.states, table.state_size())) values.push_back(value);
  }
}

/// Adds what all merged tables of this rank store.
inline void add_contents(Contents& contents, ShardedTable& tables) {
  for (std::size_t merged = 0; merged < tables.num_tables(); ++merged) add_contents(contents, tables.table(merged));
}

/// An exchanger that takes exact sizes instead of capacities, like a process group of PyTorch. Then ranks exchange
/// sizes first.
class SizedExchanger final : public Exchanger {
 public:
  explicit SizedExchanger(std::unique_ptr<Exchanger> below) : below_(std::move(below)) {}

  [[nodiscard]] int rank() const override { return below_->rank(); }
  [[nodiscard]] int size() const override { return below_->size(); }
  [[nodiscard]] bool takes_capacities() const override { return false; }
  [[nodiscard]] std::unique_ptr<Exchange> start(std::span<std::span<std::byte const> const> sends,
                                                std::span<std::span<std::byte> const> receives,
                                                std::shared_ptr<void const> memory,
                                                std::span<std::size_t> received_bytes) override {
    EXPECT_TRUE(received_bytes.empty());
    for (std::size_t i = 1; i < sends.size(); ++i) {
      EXPECT_EQ(sends[i].data(), sends[i - 1].data() + sends[i - 1].size()) << "blocks lie one after the other";
      EXPECT_EQ(receives[i].data(), receives[i - 1].data() + receives[i - 1].size());
    }
    return below_->start(sends, receives, std::move(memory));
  }
  [[nodiscard]] std::unique_ptr<Exchange> send(std::span<std::byte const> /*block*/, int /*peer*/,
                                               std::uint64_t /*number*/,
                                               std::shared_ptr<void const> /*memory*/) override {
    throw base::UsageError("messages between two ranks are not there");
  }
  [[nodiscard]] std::unique_ptr<Exchange> receive(std::span<std::byte> /*block*/, int /*peer*/,
                                                  std::uint64_t /*number*/,
                                                  std::shared_ptr<void const> /*memory*/) override {
    throw base::UsageError("messages between two ranks are not there");
  }

 private:
  std::unique_ptr<Exchanger> below_;
};

/// How a receiver of keys sizes its memory. kCapacity: it gives a capacity, and the exchange tells how much came.
/// kFirst: the ranks exchange sizes first.
enum class Sizes : std::uint8_t { kCapacity, kFirst };

inline std::unique_ptr<Exchanger> with(Sizes sizes, std::unique_ptr<Exchanger> exchanger) {
  if (sizes == Sizes::kCapacity) return exchanger;
  return std::make_unique<SizedExchanger>(std::move(exchanger));
}

/// Number of ranks, stages at which a lookup removes duplicates, optimizer, and how receivers size their memory.
using Mode = std::tuple<int, Dedup, kernels::OptimizerKind, Sizes>;

/// All modes, for INSTANTIATE_TEST_SUITE_P.
inline auto all_modes() {
  return testing::Combine(testing::Values(1, 2, 3),
                          testing::Values(Dedup::kNone, Dedup::kFirst, Dedup::kSecond, Dedup::kBoth),
                          testing::Values(kernels::OptimizerKind::kSgd, kernels::OptimizerKind::kRowWiseAdagrad,
                                          kernels::OptimizerKind::kAdam),
                          testing::Values(Sizes::kCapacity, Sizes::kFirst));
}

}  // namespace headway::embedding
