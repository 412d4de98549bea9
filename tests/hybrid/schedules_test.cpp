// SPDX-License-Identifier: Apache-2.0

// Workers and servers as threads, with random delays, over transport `checked`. Without an exact order no answer lacks
// a part that the staleness demands. In exact order a run has the bits of a reference in one table, straight and
// through embedding workers.

#include "headway/embedding/sharded_table.hpp"
#include "headway/hybrid/embedding_worker.hpp"
#include "headway/hybrid/worker_client.hpp"
#include "random_batch.hpp"
#include "server_fixture.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <tuple>
#include <vector>

namespace headway::hybrid {
namespace {

constexpr std::uint64_t kSteps = 30;

void pause(std::mt19937& random) {
  std::this_thread::sleep_for(std::chrono::microseconds(std::uniform_int_distribution<int>(0, 300)(random)));
}

/// Ids of a worker's batch: id 0, and some others without duplicates. Some batches are empty.
std::vector<std::uint64_t> ids_of(std::uint64_t step, std::uint32_t worker) {
  std::mt19937 random(static_cast<unsigned>(step * 1000 + worker));
  if (random() % 8 == 0) return {};
  std::vector<std::uint64_t> ids{0};
  for (std::uint64_t id = 1; id < 40; ++id) {
    if (random() % 4 == 0) ids.push_back(id * 0x9e3779b97f4a7c15ULL);
  }
  return ids;
}

/// Gradients that depend on the rows read, so a wrong read is never forgotten.
std::vector<float> gradients_of(std::uint64_t step, std::uint32_t worker, std::span<float const> rows) {
  std::vector<float> gradients;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    gradients.push_back(0.1F * rows[i] + 0.01F * static_cast<float>((step + worker + i) % 7) - 0.02F);
  }
  return gradients;
}

/// Runs a worker: at most staleness + 1 batches are in flight, and end in order.
/// @param use called with step, ids and rows; returns the gradients
template <class Worker, class Use>
void run_worker(Worker& worker, std::uint32_t number, std::uint32_t staleness, unsigned seed, double rate, Use use) {
  std::mt19937 random(seed * 100 + number);
  std::uint64_t next = 0;
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    for (; next < std::min<std::uint64_t>(kSteps, step + staleness + 1); ++next) {
      pause(random);
      worker.start(next, ids_of(next, number));
    }
    auto const rows = worker.rows(step);
    pause(random);
    worker.finish(step, use(step, rows), rate);
  }
}

/// Embedding workers, each with a link to every dense worker.
class EmbeddingWorkers {
 public:
  EmbeddingWorkers(Servers& servers, std::size_t count, std::vector<embedding::MergedTable> const& tables,
                   StepLedger::Options const& options, std::uint64_t fault_seed)
      : tables_(tables), options_(options), fault_seed_(fault_seed) {
    for (std::size_t i = 0; i < count; ++i) {
      workers_.push_back(std::make_unique<EmbeddingWorker>(EmbeddingWorkerOptions{
          .connect = [&servers] { return ends_of(servers); }, .timeout = kLong, .max_buffer_bytes = 1 << 20}));
    }
  }
  /// Clients of all, for one dense worker. Thread-safe.
  [[nodiscard]] std::vector<std::unique_ptr<WorkerClient>> connect() {
    std::vector<std::unique_ptr<WorkerClient>> clients;
    FeatureSetting const feature{.name = "f", .table = kTable};
    for (auto& worker : workers_) {
      auto [here, there] = make_two_ends(fault_seed_);
      {
        std::lock_guard const lock(mutex_);
        responders_.push_back(
            std::make_unique<Responder>(std::move(here), ResponderOptions{.incarnation = 1},
                                        [&worker = *worker](Request& request) { worker.handle(request); }));
      }
      clients.push_back(std::make_unique<WorkerClient>("a worker", std::move(there), kLong));
      clients.back()->set_up(tables_, {&feature, 1});
      clients.back()->begin_generation(1, options_, 1);
    }
    return clients;
  }

 private:
  std::vector<embedding::MergedTable> tables_;
  StepLedger::Options options_;
  std::uint64_t fault_seed_;
  std::mutex mutex_;  ///< Guards responders_.
  std::vector<std::unique_ptr<EmbeddingWorker>> workers_;
  std::vector<std::unique_ptr<Responder>> responders_;
};

/// A dense worker whose batches go through embedding workers, which take turns.
class ThroughWorkers {
 public:
  ThroughWorkers(EmbeddingWorkers& workers, std::uint32_t number) : clients_(workers.connect()), number_(number) {}

  void start(std::uint64_t step, std::span<std::uint64_t const> ids) {
    std::vector<std::int64_t> const signed_ids(ids.begin(), ids.end()), lengths(ids.size(), 1);
    BatchName const name{.loader = number_ + 1, .number = step};
    FeatureIds const feature{.ids = signed_ids, .lengths = lengths};
    at(step).submit(name, {&feature, 1});
    fetches_[step] = at(step).start_fetch(1, name, {step, number_});
  }
  [[nodiscard]] std::vector<float> rows(std::uint64_t step) {
    auto const& found = found_[step] = at(step).wait_embeddings(*fetches_.extract(step).mapped(), {step, number_});
    return found.values.at(0);
  }
  void finish(std::uint64_t step, std::span<float const> gradients, double rate) {
    PartValues const part{.rate = rate, .gradients = gradients};
    auto const found = found_.extract(step);
    at(step).finish(*at(step).start_gradients(1, {step, number_}, {&part, 1}, found.mapped()), {step, number_});
  }
  void end_at(std::uint64_t step) { clients_.front()->end_at(1, step); }

 private:
  [[nodiscard]] WorkerClient& at(std::uint64_t step) { return *clients_[(step + number_) % clients_.size()]; }

  std::vector<std::unique_ptr<WorkerClient>> clients_;
  std::uint32_t number_;
  std::map<std::uint64_t, Requester::CallPtr> fetches_;  ///< By step.
  std::map<std::uint64_t, Embeddings> found_;            ///< By step.
};

void begin(Servers& servers, std::vector<embedding::MergedTable> const& tables, StepLedger::Options const& options) {
  for (auto& client : servers.connect()) {
    client->configure(tables);
    client->begin_generation(1, options);
  }
}

/// Staleness, workers, servers.
class Schedules : public testing::TestWithParam<std::tuple<std::uint32_t, std::uint32_t, std::size_t>> {};
INSTANTIATE_TEST_SUITE_P(Sizes, Schedules,
                         testing::Combine(testing::Values(0, 1, 4, 16), testing::Values(1, 2, 3, 4),
                                          testing::Values(1, 3)));

/// Runs workers in free order. Each part adds 1 to id 0, so its row tells which parts it has.
void expect_that_no_answer_lacks_a_part(std::size_t num_servers, StepLedger::Options const& options) {
  auto const [num_workers, staleness] = std::pair(options.num_workers, options.staleness);
  Servers servers(num_servers, {}, /*fault_seed=*/7);
  begin(servers, one_table(1), options);
  std::vector<std::thread> threads;
  for (std::uint32_t number = 0; number < num_workers; ++number) {
    threads.emplace_back([&, number, staleness = staleness, num_workers = num_workers] {
      TestWorker worker(servers, number, 1, 1);
      run_worker(worker, number, staleness, 1, 1, [&](std::uint64_t step, std::vector<float> const& rows) {
        std::uint64_t demanded = 0, possible = 0;
        for (std::uint64_t before = 0; before < kSteps; ++before) {
          for (std::uint32_t other = 0; other < num_workers; ++other) {
            if (ids_of(before, other).empty()) continue;
            bool const is_tied = options.shares_clock || other == number;
            demanded += is_tied && before + staleness < step ? 1 : 0;
            bool const may_have_come = !is_tied || before <= step + staleness;
            possible += may_have_come && (before != step || (!options.sums_parts && other != number)) ? 1 : 0;
          }
        }
        if (!rows.empty()) {
          EXPECT_GE(rows[0], static_cast<float>(demanded)) << "step " << step;
          EXPECT_LE(rows[0], static_cast<float>(possible)) << "step " << step;
        }
        return std::vector<float>(rows.size(), -1);
      });
    });
  }
  for (auto& each : threads) each.join();
  std::uint64_t total = 0;
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    for (std::uint32_t number = 0; number < num_workers; ++number) total += ids_of(step, number).empty() ? 0 : 1;
  }
  float sum = 0;
  for (std::size_t server = 0; server < num_servers; ++server) {
    auto const status = servers[server].status();
    EXPECT_EQ(status.num_applied, kSteps);
    EXPECT_EQ(status.parts, kSteps * num_workers);
    EXPECT_LE(status.staleness.size(), staleness + std::size_t{1});
  }
  std::uint64_t const id = 0;
  std::uint32_t const table = kTable, count = 1;
  KeyList const keys{.ids = {&id, 1}, .tables = {&table, 1}, .counts = {&count, 1}};
  for (auto& client : servers.connect()) sum += client->read({&keys, 1}).at(0);
  EXPECT_EQ(sum, static_cast<float>(total)) << "each part counts once";
}

TEST_P(Schedules, NoAnswerLacksAPartThatTheStalenessDemands) {
  auto const [staleness, num_workers, num_servers] = GetParam();
  expect_that_no_answer_lacks_a_part(num_servers, {.num_workers = num_workers, .staleness = staleness});
}

constexpr std::size_t kDim = 5;
constexpr double kRate = 0.05;
using Reads = std::vector<std::vector<std::vector<float>>>;  // (workers)(steps)

std::vector<embedding::MergedTable> exact_table() {
  return one_table(kDim, kernels::OptimizerKind::kAdam, embedding::Initializer::uniform(-1, 1, 3));
}

/// Returns the rows that workers must read in exact order. A lookup sees exactly the steps before it, without the last
/// `staleness` ones.
Reads expected_reads(std::uint32_t staleness, std::uint32_t num_workers, bool sums_parts = true) {
  Reads expected(num_workers, std::vector<std::vector<float>>(kSteps));
  embedding::ShardedTable reference(exact_table(), embedding::make_local_exchanger());
  using Batches = std::vector<std::unique_ptr<embedding::ShardedTable::Batch>>;
  std::deque<Batches> pending;
  std::vector<std::vector<std::vector<float>>> gradients;  // (steps)(workers)
  std::uint64_t applied = 0;
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    for (; applied + staleness < step; ++applied) {
      for (std::size_t number = 0; number < num_workers; ++number) {
        std::span<float const> const values = gradients[applied][number];
        reference.return_gradients(*pending.front()[number], {&values, 1});
        if (!sums_parts) reference.apply_gradients(applied + 1, {.rate = kRate, .of_tables = {}});
      }
      if (sums_parts) reference.apply_gradients(applied + 1, {.rate = kRate, .of_tables = {}});
      pending.pop_front();
    }
    pending.emplace_back();
    gradients.emplace_back();
    for (std::uint32_t number = 0; number < num_workers; ++number) {
      auto const ids = ids_of(step, number);
      std::vector<std::int64_t> const lengths(ids.size(), 1);
      embedding::Feature const feature{
          .name = "f", .table = kTable, .ids = {ids.data(), ids.size()}, .lengths = {lengths.data(), lengths.size()}};
      auto batch = reference.begin({&feature, 1});
      reference.finish(*batch);
      std::vector<float> rows(ids.size() * kDim);
      reference.expand(*batch, 0, rows);
      gradients.back().push_back(gradients_of(step, number, rows));
      expected[number][step] = std::move(rows);
      pending.back().push_back(std::move(batch));
    }
  }
  return expected;
}

/// Runs all workers in exact order, and compares what they read.
/// @param make_worker returns the worker of a number, on its thread
template <class MakeWorker>
void expect_reads(Reads const& expected, std::uint32_t staleness, unsigned seed, MakeWorker make_worker) {
  std::vector<std::thread> threads;
  Reads found(expected.size(), std::vector<std::vector<float>>(kSteps));
  for (std::uint32_t number = 0; number < expected.size(); ++number) {
    threads.emplace_back([&, number] {
      auto worker = make_worker(number);
      run_worker(worker, number, staleness, seed, kRate, [&](std::uint64_t step, std::vector<float> const& rows) {
        found[number][step] = rows;
        return gradients_of(step, number, rows);
      });
      worker.end_at(kSteps);
    });
  }
  for (auto& each : threads) each.join();
  for (std::uint32_t number = 0; number < expected.size(); ++number) {
    for (std::uint64_t step = 0; step < kSteps; ++step) {
      ASSERT_EQ(found[number][step], expected[number][step]) << "worker " << number << ", step " << step;
    }
  }
}

/// Seeds of each size: HEADWAY_TEST_SCHEDULES if it is set.
unsigned num_schedules(unsigned otherwise) {
  char const* const value = std::getenv("HEADWAY_TEST_SCHEDULES");
  return value == nullptr ? otherwise : static_cast<unsigned>(std::strtoul(value, nullptr, 10));
}

TEST_P(Schedules, ExactOrderHasTheBitsOfOneTable) {
  auto const [staleness, num_workers, num_servers] = GetParam();
  StepLedger::Options const options{.num_workers = num_workers, .staleness = staleness, .is_exact = true};
  auto const expected = expected_reads(staleness, num_workers);
  for (unsigned seed = 1; seed <= num_schedules(2); ++seed) {
    Servers servers(num_servers, {}, seed);
    begin(servers, exact_table(), options);
    expect_reads(expected, staleness, seed, [&](std::uint32_t number) { return TestWorker(servers, number, 1, kDim); });
  }
}

class PartsThatAreNotAdded : public testing::TestWithParam<std::uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Staleness, PartsThatAreNotAdded, testing::Values(0, 1, 4));

TEST_P(PartsThatAreNotAdded, DoNotLackOneThatTheStalenessDemands) {
  for (std::uint32_t const num_workers : {2, 4}) {
    expect_that_no_answer_lacks_a_part(2, {.num_workers = num_workers, .staleness = GetParam(), .sums_parts = false});
  }
}

TEST_P(PartsThatAreNotAdded, DoNotLackOneOfTheirOwnWorkerIfItsClockIsItsOwn) {
  for (std::uint32_t const num_workers : {2, 4}) {
    expect_that_no_answer_lacks_a_part(
        2, {.num_workers = num_workers, .staleness = GetParam(), .sums_parts = false, .shares_clock = false});
  }
}

TEST_P(PartsThatAreNotAdded, HaveTheBitsOfOneTableInExactOrder) {
  for (std::uint32_t const num_workers : {1, 3}) {
    StepLedger::Options const options{
        .num_workers = num_workers, .staleness = GetParam(), .is_exact = true, .sums_parts = false};
    Servers servers(2, {}, 1);
    begin(servers, exact_table(), options);
    expect_reads(expected_reads(GetParam(), num_workers, false), GetParam(), 1,
                 [&](std::uint32_t number) { return TestWorker(servers, number, 1, kDim); });
  }
}

TEST_P(Schedules, ExactOrderHasTheBitsOfOneTableThroughEmbeddingWorkers) {
  auto const [staleness, num_workers, num_servers] = GetParam();
  StepLedger::Options const options{.num_workers = num_workers, .staleness = staleness, .is_exact = true};
  auto const expected = expected_reads(staleness, num_workers);
  for (std::size_t const num_embedding_workers : {1, 2}) {
    for (unsigned seed = 1; seed <= num_schedules(1); ++seed) {
      Servers servers(num_servers, {}, seed);
      EmbeddingWorkers workers(servers, num_embedding_workers, exact_table(), options, seed);
      expect_reads(expected, staleness, seed, [&](std::uint32_t number) { return ThroughWorkers(workers, number); });
    }
  }
}

TEST(Staleness, OneSlowGradientLetsOthersRunAheadByExactlyTheBound) {
  constexpr std::uint32_t kStaleness = 4;
  Servers servers(1);
  begin(servers, one_table(1), {.num_workers = 2, .staleness = kStaleness});
  TestWorker slow(servers, 0, 1, 1), fast(servers, 1, 1, 1);
  std::vector<std::uint64_t> const ids{1};
  std::vector<float> const gradient{-1};
  slow.start(0, ids);
  EXPECT_EQ(slow.rows(0).size(), 1U);  // Its gradient comes late.
  for (std::uint64_t step = 0; step <= kStaleness; ++step) {
    fast.start(step, ids);
    EXPECT_EQ(fast.rows(step).at(0), 0);
    fast.finish(step, gradient, 1);
  }
  fast.start(kStaleness + 1, ids);
  auto const until = comm::deadline_after(kLong);
  while (servers[0].status().held == 0 && comm::Clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  auto status = servers[0].status();
  EXPECT_EQ(status.held, 1U);
  EXPECT_EQ(status.num_applied, 0U);
  slow.finish(0, gradient, 1);
  EXPECT_EQ(fast.rows(kStaleness + 1).at(0), 2);
  status = servers[0].status();
  EXPECT_EQ(status.staleness.size(), kStaleness + 1U);
  EXPECT_EQ(status.staleness[kStaleness], 2U);
}

}  // namespace
}  // namespace headway::hybrid
