// SPDX-License-Identifier: Apache-2.0

// A model, requests and ranks for tests of the engine. The model has a feature of users ("user"), a sequence of users
// ("history"), and a feature ("item") and a number ("price") of items. Its output of an item is the sum of all columns
// of these, plus the number of values and items of its user.

#pragma once

#include "headway/base/status.hpp"
#include "headway/comm/group.hpp"
#include "headway/embedding/routing.hpp"
#include "headway/serving/engine.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace headway::serving {

using namespace std::chrono_literals;

inline constexpr std::size_t kDim = 4;

inline Manifest small_manifest(std::vector<Sizes> const& buckets = {{.items = 32, .users = 8, .tokens = 64}}) {
  using embedding::Initializer, embedding::Pooling;
  Manifest manifest;
  manifest.version = "v1";
  manifest.number = 1;
  manifest.tables = {
      {.name = "users", .id = 1, .dim = kDim, .initializer = Initializer::uniform(-1, 1, 3)},
      {.name = "items", .id = 2, .dim = kDim, .initializer = Initializer::uniform(-1, 1, 3)},
      {.name = "topics", .id = 3, .dim = kDim, .reads_unknown_as_zeros = true},
  };
  manifest.features = {
      {.name = "user", .table = 0, .axis = Axis::kUser, .is_single = true},
      {.name = "history", .table = 1, .axis = Axis::kUser, .pooling = Pooling::kNone, .sequence = 0},
      {.name = "item", .table = 1, .is_single = true},
      {.name = "topics", .table = 2, .pooling = Pooling::kMean},
  };
  manifest.sequences = {"history"};
  manifest.dense_features = {{.name = "price", .width = 1}};
  manifest.outputs = {"score"};
  for (auto const& bucket : buckets) manifest.parts.push_back({.bucket = bucket, .file = "dense.pt2"});
  return manifest;
}

/// Adds up what belongs to each item.
class SumModel : public DenseModel {
 public:
  explicit SumModel(Manifest manifest, std::chrono::milliseconds time = 0ms)
      : manifest_(std::move(manifest)), time_(time) {}

  [[nodiscard]] std::vector<OutputRows> run(std::size_t part, std::span<InputTensor const> inputs) override {
    auto const& bucket = manifest_.parts[part].bucket;
    auto const* user = static_cast<float const*>(inputs[0].data);
    auto const* history = static_cast<float const*>(inputs[1].data);
    auto const* item = static_cast<float const*>(inputs[2].data);
    auto const* topics = static_cast<float const*>(inputs[3].data);
    auto const* lengths = static_cast<std::int64_t const*>(inputs[4].data);
    auto const* prices = static_cast<float const*>(inputs[5].data);
    auto const* items = static_cast<std::int64_t const*>(inputs[6].data);
    EXPECT_EQ(inputs[1].shape, (std::vector<std::int64_t>{static_cast<std::int64_t>(bucket.tokens), kDim}));
    OutputRows scores{.values = std::vector<float>(bucket.items)};
    std::size_t row = 0, token = 0;
    for (std::size_t u = 0; u < bucket.users; ++u) {
      float of_user = sum_row(user, u) + static_cast<float>(items[u] + lengths[u]);
      for (std::int64_t i = 0; i < lengths[u]; ++i) of_user += sum_row(history, token++);
      for (std::int64_t i = 0; i < items[u]; ++i, ++row) {
        scores.values[row] = of_user + sum_row(item, row) + sum_row(topics, row) + prices[row];
      }
    }
    if (++num_runs > 1) std::this_thread::sleep_for(time_.load());  // The first one is that of ServedModel.
    if (throws) throw std::runtime_error("the model is broken");
    return {std::move(scores)};
  }

  std::atomic<int> num_runs = 0;
  std::atomic<bool> throws = false;

 private:
  static float sum_row(float const* rows, std::size_t row) {
    return std::accumulate(rows + row * kDim, rows + (row + 1) * kDim, 0.0F);
  }

  Manifest manifest_;
  std::atomic<std::chrono::milliseconds> time_;
};

/// Rows of a rank: ids below 50 of each table.
inline std::vector<embedding::ReadTable> small_tables(Manifest const& manifest, int rank, int size, float scale = 1) {
  auto const merged = merge_tables(manifest);
  std::vector<embedding::ReadTable> tables(merged.dims.size());
  std::vector<std::shared_ptr<embedding::Table>> rows(tables.size());
  for (std::size_t i = 0; i < manifest.tables.size(); ++i) {
    auto const& served = manifest.tables[i];
    auto const index = merged.merged_of[i];
    if (rows[index] == nullptr) {
      rows[index] = embedding::make_cpu_table({.dim = served.dim, .initializer = served.initializer});
    }
    tables[index].tables.push_back(served.id);
    tables[index].reads_unknown_as_zeros = served.reads_unknown_as_zeros;
    for (std::uint64_t id = 0; id < 50; ++id) {
      auto const hash = embedding::hash_of({.id = id, .table = served.id});
      auto const owner = embedding::owner_of(embedding::virtual_bucket_of(hash), static_cast<std::uint32_t>(size));
      if (owner != static_cast<std::uint32_t>(rank)) continue;
      std::vector<float> row(kDim);
      for (std::size_t column = 0; column < kDim; ++column) {
        row[column] = scale * 0.37F * static_cast<float>(id * (column + 1) % 11 + served.id);
      }
      embedding::KeyStatus status;
      rows[index]->insert_or_assign({.ids = {&id, 1}, .table = served.id}, row, {&status, 1});
    }
  }
  for (std::size_t i = 0; i < tables.size(); ++i) tables[i].rows = rows[i];
  return tables;
}

/// A request with its arrays.
struct Arrays {
  std::vector<std::int64_t> users, history, items, topics;
  std::vector<std::int32_t> user_lengths, history_lengths, item_lengths, topic_lengths, num_items;
  std::vector<float> prices;
};

inline Request request_of(std::shared_ptr<Arrays> const& arrays) {
  return {.features = {{arrays->users, arrays->user_lengths},
                       {arrays->history, arrays->history_lengths},
                       {arrays->items, arrays->item_lengths},
                       {arrays->topics, arrays->topic_lengths}},
          .dense = {arrays->prices},
          .items = arrays->num_items,
          .memory = arrays};
}

/// One user with a history and some items; ids below 60, of which some have no row.
inline std::shared_ptr<Arrays> random_arrays(std::mt19937& random, int most_items = 8) {
  auto arrays = std::make_shared<Arrays>();
  auto const id = [&] { return static_cast<std::int64_t>(random() % 60); };
  arrays->users = {id()};
  arrays->user_lengths = {1};
  arrays->history_lengths = {static_cast<std::int32_t>(random() % 8)};
  for (int i = 0; i < arrays->history_lengths[0]; ++i) arrays->history.push_back(id());
  arrays->num_items = {static_cast<std::int32_t>(1 + random() % static_cast<unsigned>(most_items))};
  for (int i = 0; i < arrays->num_items[0]; ++i) {
    arrays->items.push_back(id());
    arrays->item_lengths.push_back(1);
    arrays->topic_lengths.push_back(static_cast<std::int32_t>(random() % 3));
    for (int topic = 0; topic < arrays->topic_lengths.back(); ++topic) arrays->topics.push_back(id());
    arrays->prices.push_back(static_cast<float>(random() % 100) * 0.1F);
  }
  return arrays;
}

/// An engine of one rank, with the tables of small_tables().
struct ServedRank {
  std::shared_ptr<SumModel> dense;
  std::unique_ptr<Engine> engine;
};

/// How ranks fetch rows.
enum class Kind { kPairwise, kRing };

inline std::unique_ptr<RowFetcher> make_fetcher(Kind kind, std::shared_ptr<comm::Group> const& group) {
  return kind == Kind::kRing ? make_ring_fetcher(group, nullptr, 16) : make_pairwise_fetcher(group, nullptr);
}

inline ServedRank serve(std::shared_ptr<comm::Group> const& group, EngineOptions options = {},
                        Manifest const& manifest = small_manifest(), std::chrono::milliseconds time = 0ms,
                        Kind kind = Kind::kPairwise) {
  ServedRank rank{.dense = std::make_shared<SumModel>(manifest, time), .engine = nullptr};
  auto fetcher = make_fetcher(kind, group);
  fetcher->add_version(manifest.number, small_tables(manifest, fetcher->rank(), fetcher->size()));
  rank.engine = std::make_unique<Engine>(std::make_shared<ServedModel>(manifest, rank.dense), std::move(fetcher),
                                         std::move(options));
  return rank;
}

/// Sends a request. @returns its reply
inline std::future<Reply> ask(Engine& engine, std::shared_ptr<Arrays> const& arrays,
                              std::chrono::milliseconds timeout = 20s) {
  auto const promise = std::make_shared<std::promise<Reply>>();
  engine.submit(request_of(arrays), Clock::now() + timeout,
                [promise](Reply&& reply) { promise->set_value(std::move(reply)); });
  return promise->get_future();
}

/// Waits for a reply; a minute is a hang.
inline Reply get(std::future<Reply> reply) {
  if (reply.wait_for(60s) != std::future_status::ready) {
    ADD_FAILURE() << "there is no reply";
    return {.outcome = Outcome::kFailed, .error = "no reply"};
  }
  return reply.get();
}

/// Runs `body` on `size` ranks, each in a thread with a group. An exception of one fails the test.
inline void run_ranks(int size, std::function<void(std::shared_ptr<comm::Group>)> const& body, int max_lag = 0) {
  comm::MemoryStore store;
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        comm::GroupOptions options;
        options.transport = comm::Transport::kInproc;
        options.num_channels = 2;
        options.max_lag = max_lag;
        body(comm::Group::connect(rank, size, store, options));
      } catch (std::exception const& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  }
}

}  // namespace headway::serving
