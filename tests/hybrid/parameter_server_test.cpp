// SPDX-License-Identifier: Apache-2.0

// A parameter server alone: its rules and its errors, message by message.

#include "headway/hybrid/parameter_server.hpp"

#include "server_fixture.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace headway::hybrid {
namespace {

using std::chrono::milliseconds;
using Ids = std::vector<std::uint64_t>;

/// A server with a table of one column, and some workers.
class ParameterServerTest : public testing::Test {
 protected:
  void begin(std::uint32_t num_workers, std::uint32_t staleness, ParameterServerOptions const& options = {},
             bool sums_parts = true) {
    servers_ = std::make_unique<Servers>(1, options);
    for (std::uint32_t worker = 0; worker < num_workers; ++worker) {
      workers_.push_back(std::make_unique<TestWorker>(*servers_, worker, 1, 1));
    }
    client().configure(one_table(1));
    client().begin_generation(1, {.num_workers = num_workers, .staleness = staleness, .sums_parts = sums_parts});
  }
  /// Workers that count steps of their own.
  void begin_async(std::uint32_t num_workers, std::uint32_t staleness,
                   std::vector<embedding::MergedTable> const& tables = one_table(1)) {
    servers_ = std::make_unique<Servers>(1);
    for (std::uint32_t worker = 0; worker < num_workers; ++worker) {
      workers_.push_back(std::make_unique<TestWorker>(*servers_, worker, 1, 1));
    }
    client().configure(tables);
    client().begin_generation(
        1, {.num_workers = num_workers, .staleness = staleness, .sums_parts = false, .shares_clock = false});
  }
  [[nodiscard]] ServerClient& client() { return workers_.front()->client(0); }
  [[nodiscard]] TestWorker& worker(std::size_t number) { return *workers_[number]; }
  /// Row of an id, without a lookup.
  [[nodiscard]] float read(std::uint64_t id) {
    std::uint32_t const table = kTable, count = 1;
    KeyList const keys{.ids = {&id, 1}, .tables = {&table, 1}, .counts = {&count, 1}};
    return client().read({&keys, 1}).at(0);
  }
  [[nodiscard]] bool has_rows(Requester::Call& lookup) {
    return client().requester().wait(lookup, milliseconds(30)).has_value();
  }

  std::unique_ptr<Servers> servers_;
  std::vector<std::unique_ptr<TestWorker>> workers_;
};

TEST_F(ParameterServerTest, AddsThePartsOfAStepAndUpdatesOnce) {
  begin(2, 0);
  worker(0).start(0, Ids{5, 6});
  worker(1).start(0, Ids{5});
  EXPECT_EQ(worker(0).rows(0), (std::vector<float>{0, 0}));
  EXPECT_EQ(worker(1).rows(0), std::vector<float>{0});
  worker(0).finish(0, std::vector<float>{1, 2}, 0.5);
  EXPECT_EQ(read(5), 0) << "the part of worker 1 is missing";
  worker(1).finish(0, std::vector<float>{4}, 0.5);
  EXPECT_EQ(read(5), -2.5F);
  EXPECT_EQ(read(6), -1.0F);
  auto const status = client().status();
  EXPECT_EQ(status.num_applied, 1U);
  EXPECT_EQ(status.parts, 2U);
  EXPECT_EQ(status.rows, 2U);
  EXPECT_EQ(status.staleness, std::vector<std::uint64_t>{2});
}

TEST_F(ParameterServerTest, AppliesPartsThatAreNotAddedWhenTheyCome) {
  begin(2, 1, {}, /*sums_parts=*/false);
  for (std::uint32_t const number : {0, 1}) {
    worker(number).start(0, Ids{5});
    EXPECT_EQ(worker(number).rows(0), std::vector<float>{0});
  }
  std::vector<float> const gradient{1};
  PartValues const part{.rate = 0.5, .gradients = gradient};
  client().finish(*client().start_part(1, {0, 0}, {&part, 1}));
  EXPECT_EQ(read(5), -0.5F) << "worker 1 has not sent its part";
  EXPECT_EQ(client().status().num_applied, 0U);
  auto const again = [&] { client().finish(*client().start_part(1, {0, 0}, {&part, 1})); };
  EXPECT_NE(refusal_of(again).find("its part has come before"), std::string::npos);
  auto const notice = [&] { client().finish(*client().start_void(1, {0, 0})); };
  EXPECT_NE(refusal_of(notice).find("its part has come before"), std::string::npos);
  EXPECT_EQ(read(5), -0.5F);
  worker(1).finish(0, std::vector<float>{2}, 0.25);  // Rates of workers may differ.
  EXPECT_EQ(read(5), -1.0F);
  EXPECT_EQ(client().status().num_applied, 1U);
  worker(0).start(2, Ids{5});
  EXPECT_EQ(worker(0).rows(2), std::vector<float>{-1});
}

TEST_F(ParameterServerTest, AWorkerWithAClockOfItsOwnWaitsForNobody) {
  begin_async(2, 0);
  worker(1).start(0, Ids{5});
  EXPECT_EQ(worker(1).rows(0), std::vector<float>{0});
  for (std::uint64_t step = 0; step < 5; ++step) {
    worker(0).start(step, Ids{5});
    EXPECT_EQ(worker(0).rows(step), std::vector<float>{-static_cast<float>(step)});
    worker(0).finish(step, std::vector<float>{1}, 1);
  }
  EXPECT_EQ(client().status().num_applied, 5U) << "steps of the worker that has come furthest";
  worker(0).start(5, Ids{5});
  worker(0).start(6, Ids{5});
  worker(0).send_void(5);
  EXPECT_EQ(worker(0).rows(6), std::vector<float>{-5}) << "it was held back by its own step 5 alone";
  EXPECT_EQ(client().status().staleness, std::vector<std::uint64_t>{8});
  worker(1).finish(0, std::vector<float>{2}, 0.5);
  EXPECT_EQ(read(5), -6);
  worker(1).start(1, Ids{5});
  EXPECT_EQ(worker(1).rows(1), std::vector<float>{-6});
  EXPECT_NE(refusal_of([&] { client().end_at(1, 9); }).find("no common end"), std::string::npos);
}

TEST_F(ParameterServerTest, StepsOfAnOptimizerCountTheUpdatesOfAllWorkersWithClocksOfTheirOwn) {
  // Adam corrects its moments by the number of updates, which is 1 for the first step of each worker alone.
  begin_async(2, 0, one_table(1, kernels::OptimizerKind::kAdam));
  auto tables = one_table(1, kernels::OptimizerKind::kAdam);
  for (std::uint32_t const number : {0, 1}) {
    worker(number).start(0, Ids{5});
    worker(number).finish(0, std::vector<float>(worker(number).rows(0).size(), -1), 1);
  }
  auto const asynchronous = read(5);
  workers_.clear();
  servers_ = std::make_unique<Servers>(1);
  workers_.push_back(std::make_unique<TestWorker>(*servers_, 0, 1, 1));
  client().configure(tables);
  client().begin_generation(1, {.num_workers = 1});
  for (std::uint64_t step = 0; step < 2; ++step) {
    worker(0).start(step, Ids{5});
    worker(0).finish(step, std::vector<float>(worker(0).rows(step).size(), -1), 1);
  }
  EXPECT_EQ(asynchronous, read(5));
}

TEST_F(ParameterServerTest, RowsOfASlowWorkersBatchAreNotEvictedAndAWorkerThatHasEndedKeepsNone) {
  auto tables = one_table(1);
  tables[0].options.max_rows = 16;
  tables[0].options.eviction = embedding::EvictionPolicy::kLeastRecentlyUsed;
  begin_async(2, 0, tables);
  worker(1).start(0, Ids{100, 101});
  EXPECT_EQ(worker(1).rows(0).size(), 2U);
  std::uint64_t step = 0;
  auto const train = [&](std::uint64_t count) {
    for (std::uint64_t i = 0; i < count; ++i, ++step) {
      worker(0).start(step, Ids{step});
      EXPECT_EQ(worker(0).rows(step).size(), 1U);
      worker(0).finish(step, std::vector<float>{-1}, 1);
    }
  };
  train(40);
  EXPECT_GT(client().status().refused, 0U) << "rows from the slow batch on stay";
  worker(1).finish(0, std::vector<float>{-1, -1}, 1);
  EXPECT_EQ(read(100), 1) << "its row was kept";
  EXPECT_EQ(read(101), 1);
  train(40);  // Worker 1 has ended.
  EXPECT_EQ(read(100), 0) << "evicted";
  EXPECT_EQ(read(step - 1), 1);
}

TEST_F(ParameterServerTest, HoldsALookupBackUntilItsPartsAreApplied) {
  begin(1, 1);
  std::uint64_t const id = 9;
  std::uint32_t const table = kTable, count = 1;
  KeyList const keys{.ids = {&id, 1}, .tables = {&table, 1}, .counts = {&count, 1}};
  worker(0).start(0, Ids{9});
  worker(0).start(1, Ids{9});
  EXPECT_EQ(worker(0).rows(0).at(0), 0);
  EXPECT_EQ(worker(0).rows(1).at(0), 0) << "one step may be missing";
  auto const third = client().start_lookup(1, {2, 0}, {&keys, 1});
  EXPECT_FALSE(has_rows(*third));
  EXPECT_EQ(client().status().held, 1U);
  worker(0).finish(0, std::vector<float>{-1}, 1);
  EXPECT_EQ(client().wait_rows(*third, kLong).value().at(0), 1);
  EXPECT_EQ(client().status().staleness, (std::vector<std::uint64_t>{1, 2}));
}

TEST_F(ParameterServerTest, AVoidNoticeStandsForAPart) {
  begin(2, 0);
  for (std::uint32_t const number : {0, 1}) {
    worker(number).start(0, Ids{5});
    EXPECT_EQ(worker(number).rows(0).size(), 1U);
  }
  worker(0).finish(0, std::vector<float>{1}, 1);
  worker(1).send_void(0);
  EXPECT_EQ(read(5), -1);
  EXPECT_EQ(client().status().voids, 1U);
  worker(1).send_void(1);  // A batch that was never looked up.
  worker(0).start(1, Ids{5});
  EXPECT_EQ(worker(0).rows(1).at(0), -1);
  worker(0).finish(1, std::vector<float>{1}, 1);
  EXPECT_EQ(read(5), -2);
}

TEST_F(ParameterServerTest, AVoidNoticeEndsItsHeldLookup) {
  begin(1, 0);
  worker(0).start(0, Ids{1});
  worker(0).start(1, Ids{1});
  EXPECT_EQ(worker(0).rows(0).size(), 1U);
  auto const notice = client().start_void(1, {1, 0});
  EXPECT_NE(refusal_of([&] { static_cast<void>(worker(0).rows(1)); }).find("batch of step 1, worker 0: it is void"),
            std::string::npos);
  EXPECT_FALSE(has_rows(*notice)) << "it is answered when a lookup would be";
  worker(0).finish(0, std::vector<float>{1}, 1);
  client().finish(*notice);
}

TEST_F(ParameterServerTest, AWorkerWithoutBatchesDoesNotRunAway) {
  begin(2, 1);
  std::vector<Requester::CallPtr> notices;
  for (std::uint64_t step = 0; step < 3; ++step) notices.push_back(client().start_void(1, {step, 0}));
  client().finish(*notices[0]);
  client().finish(*notices[1]);
  EXPECT_FALSE(has_rows(*notices[2])) << "step 0 of worker 1 is missing";
  worker(1).send_void(0);
  client().finish(*notices[2]);
}

TEST_F(ParameterServerTest, TwoTrainersDoNotShareAGeneration) {
  begin(1, 0);
  client().begin_generation(2, {.num_workers = 1}, 11);
  client().begin_generation(2, {.num_workers = 1}, 11);
  EXPECT_NE(refusal_of([&] {
              client().begin_generation(2, {.num_workers = 1}, 12);
            }).find("generation 2 was begun by another trainer at the same time"),
            std::string::npos);
}

TEST_F(ParameterServerTest, AFirstStepThatIsTooLargeChangesNothing) {
  begin(1, 0);
  for (std::uint64_t const step : {~std::uint64_t{0}, std::uint64_t{1} << 32}) {
    EXPECT_NE(refusal_of([&] {
                client().begin_generation(2, {.num_workers = 1, .staleness = 1, .first_step = step});
              }).find("first step is too large"),
              std::string::npos);
  }
  EXPECT_EQ(client().status().generation, 1U);
  worker(0).start(0, Ids{5});
  EXPECT_EQ(worker(0).rows(0).size(), 1U);
}

TEST_F(ParameterServerTest, RowsThatWouldNotFitAPartAreRefused) {
  begin(1, 0, {.max_rows_bytes = 40});
  Ids ids;
  for (std::uint64_t id = 0; id < 11; ++id) ids.push_back(id);
  worker(0).start(0, ids);
  EXPECT_EQ(refusal_of([&] { static_cast<void>(worker(0).rows(0)); }),
            "bad request: batch of step 0, worker 0: its rows have 44 bytes, and at most 40 are allowed");
  ids.pop_back();
  TestWorker again(*servers_, 0, 1, 1);
  again.start(0, ids);
  EXPECT_EQ(again.rows(0).size(), 10U) << "nothing was counted";
}

TEST_F(ParameterServerTest, AnOlderGenerationIsVoid) {
  begin(1, 0);
  worker(0).start(0, Ids{5});
  EXPECT_EQ(worker(0).rows(0).size(), 1U);
  worker(0).start(1, Ids{5});
  client().begin_generation(2, {.num_workers = 1, .first_step = 7});
  EXPECT_NE(refusal_of([&] { static_cast<void>(worker(0).rows(1)); }).find("old generation: generation 1 has ended"),
            std::string::npos);
  EXPECT_NE(refusal_of([&] { worker(0).finish(0, std::vector<float>{1}, 1); }).find("old generation"),
            std::string::npos);
  EXPECT_NE(refusal_of([&] { client().begin_generation(1, {.num_workers = 1}); }).find("old generation"),
            std::string::npos);
  EXPECT_EQ(read(5), 0);
  EXPECT_EQ(client().status().num_applied, 7U);
  EXPECT_EQ(client().status().void_generation, 2U);
  TestWorker again(*servers_, 0, 2, 1);
  again.start(7, Ids{5});
  EXPECT_EQ(again.rows(7).size(), 1U);
  again.finish(7, std::vector<float>{1}, 1);
  EXPECT_EQ(read(5), -1);
}

TEST_F(ParameterServerTest, ALaterGenerationMayBeginAtAnEarlierStep) {
  begin(1, 16);
  for (std::uint64_t step = 0; step < 3; ++step) {
    worker(0).start(step, Ids{5});
    EXPECT_EQ(worker(0).rows(step).size(), 1U);
    worker(0).finish(step, std::vector<float>{-1}, 1);
  }
  client().begin_generation(2, {.num_workers = 1, .staleness = 0, .first_step = 1});
  TestWorker again(*servers_, 0, 2, 1);
  for (std::uint64_t step = 1; step < 3; ++step) {
    again.start(step, Ids{5, 6});
    EXPECT_EQ(again.rows(step).at(0), static_cast<float>(step + 2));
    again.finish(step, std::vector<float>{-1, -1}, 1);
  }
}

TEST_F(ParameterServerTest, MistakesAreErrorsThatNameTheBatchAndTheServerGoesOn) {
  begin(2, 0);
  PartValues const none{};
  auto const part = [&](BatchId batch, PartValues const& values) {
    return refusal_of([&] { client().finish(*client().start_part(1, batch, {&values, 1})); });
  };
  EXPECT_EQ(part({0, 0}, none), "bad request: batch of step 0, worker 0: it was not looked up");
  worker(0).start(0, Ids{5, 6});
  EXPECT_EQ(worker(0).rows(0).size(), 2U);
  float const one = 1;
  EXPECT_EQ(part({0, 0}, {.rate = 1, .gradients = {&one, 1}}),
            "bad request: batch of step 0, worker 0: merged table 0 has 1 gradients instead of 2");
  EXPECT_EQ(part({0, 0}, {.rate = std::nan("")}),
            "bad request: batch of step 0, worker 0: a learning rate is not finite");
  EXPECT_NE(part({9, 0}, none).find("it was not looked up"), std::string::npos);
  worker(0).start(1, Ids{5});
  EXPECT_NE(part({1, 0}, none).find("its lookup has not been answered"), std::string::npos);
  TestWorker stranger(*servers_, 2, 1, 1);
  stranger.start(0, Ids{5});
  EXPECT_EQ(refusal_of([&] { static_cast<void>(stranger.rows(0)); }),
            "bad request: lookup of step 0, worker 2: there are 2 dense workers");
  worker(1).start(0, Ids{5});
  EXPECT_EQ(worker(1).rows(0).size(), 1U);
  worker(0).finish(0, std::vector<float>{1, 1}, 1);
  EXPECT_EQ(refusal_of([&] { worker(1).finish(0, std::vector<float>{1}, 0.5); }),
            "bad request: batch of step 0, worker 1: worker 0 has another learning rate in this step");
  worker(1).send_void(0);
  EXPECT_EQ(worker(0).rows(1).at(0), -1);
  EXPECT_NE(part({0, 0}, none).find("steps below 1 have been applied"), std::string::npos);
  std::uint64_t const id = 5;
  std::uint32_t const table = kTable, count = 1;
  KeyList const keys{.ids = {&id, 1}, .tables = {&table, 1}, .counts = {&count, 1}};
  auto const again = client().start_lookup(1, {1, 0}, {&keys, 1});
  EXPECT_EQ(refusal_of([&] { static_cast<void>(client().wait_rows(*again, kLong)); }),
            "bad request: lookup of step 1, worker 0 has come before");
}

TEST_F(ParameterServerTest, TablesThatDifferAreAnErrorThatShowsBoth) {
  begin(1, 0);
  client().configure(one_table(1));
  auto const other = refusal_of([&] { client().configure(one_table(4)); });
  EXPECT_NE(other.find("dim 1,"), std::string::npos) << other;
  EXPECT_NE(other.find("dim 4,"), std::string::npos) << other;
  auto limited = one_table(1);
  limited[0].options.max_rows = 10;
  EXPECT_NE(refusal_of([&] { client().configure(limited); }).find("other limits of rows"), std::string::npos);
  std::uint64_t const id = 1;
  std::uint32_t const table = kTable + 1, count = 1;
  KeyList const keys{.ids = {&id, 1}, .tables = {&table, 1}, .counts = {&count, 1}};
  EXPECT_NE(refusal_of([&] {
              client().finish(*client().start_lookup(1, {0, 0}, {&keys, 1}));
            }).find("table 4 is not of merged table 0"),
            std::string::npos);
}

TEST_F(ParameterServerTest, AGradientThatIsNotFiniteIsDroppedAndCounted) {
  begin(1, 0);
  worker(0).start(0, Ids{5, 6});
  EXPECT_EQ(worker(0).rows(0).size(), 2U);
  worker(0).finish(0, std::vector<float>{1, std::numeric_limits<float>::infinity()}, 1);
  EXPECT_EQ(read(5), 0);
  EXPECT_EQ(client().status().void_not_finite, 1U);
  EXPECT_EQ(client().status().num_applied, 1U);
}

TEST_F(ParameterServerTest, AStrictServerRefusesAGradientThatIsNotFinite) {
  begin(1, 0, {.is_strict = true});
  worker(0).start(0, Ids{5});
  EXPECT_EQ(worker(0).rows(0).size(), 1U);
  EXPECT_NE(refusal_of([&] {
              worker(0).finish(0, std::vector<float>{std::nanf("")}, 1);
            }).find("batch of step 0, worker 0: a gradient is not finite"),
            std::string::npos);
  worker(0).send_void(0);
  EXPECT_EQ(client().status().num_applied, 1U);
}

TEST_F(ParameterServerTest, AGradientWhoseRowIsGoneLeavesThoseOfOthers) {
  servers_ = std::make_unique<Servers>(1);
  workers_.push_back(std::make_unique<TestWorker>(*servers_, 0, 1, 1));
  auto tables = one_table(1);
  tables[0].options.max_rows = 100;
  client().configure(tables);
  client().begin_generation(1, {.num_workers = 1});
  Ids ids;
  std::vector<float> gradients;
  for (std::uint64_t id = 0; id < 200; ++id) {
    ids.push_back(id);
    gradients.push_back(-static_cast<float>(id) - 1);
  }
  worker(0).start(0, ids);
  EXPECT_EQ(worker(0).rows(0).size(), 200U);
  worker(0).finish(0, gradients, 1);
  std::size_t num_trained = 0;
  for (std::uint64_t id = 0; id < 200; ++id) {
    auto const row = read(id);
    if (row == 0) continue;
    EXPECT_EQ(row, static_cast<float>(id) + 1) << "id " << id;
    ++num_trained;
  }
  EXPECT_EQ(num_trained, 100U);
  EXPECT_EQ(client().status().dropped_gradients, 100U);
}

TEST_F(ParameterServerTest, RowsOfStepsThatAreNotAppliedAreNotEvicted) {
  servers_ = std::make_unique<Servers>(1);
  workers_.push_back(std::make_unique<TestWorker>(*servers_, 0, 1, 1));
  auto tables = one_table(1);
  tables[0].options.max_rows = 4;
  tables[0].options.eviction = embedding::EvictionPolicy::kLeastRecentlyUsed;
  client().configure(tables);
  client().begin_generation(1, {.num_workers = 1, .staleness = 1});
  worker(0).start(0, Ids{1, 2, 3});
  worker(0).start(1, Ids{4, 5, 6});  // Only one more row fits, and none may go.
  EXPECT_EQ(worker(0).rows(0).size(), 3U);
  EXPECT_EQ(worker(0).rows(1).size(), 3U);
  worker(0).finish(0, std::vector<float>{-1, -1, -1}, 1);
  for (std::uint64_t id = 1; id <= 3; ++id) EXPECT_EQ(read(id), 1) << id;
  worker(0).finish(1, std::vector<float>{-1, -1, -1}, 1);
  worker(0).start(2, Ids{7, 8, 9});  // Now rows of steps 0 and 1 may go.
  EXPECT_EQ(worker(0).rows(2).size(), 3U);
  worker(0).finish(2, std::vector<float>{-1, -1, -1}, 1);
  for (std::uint64_t id = 7; id <= 9; ++id) EXPECT_EQ(read(id), 1) << id;
  EXPECT_GT(client().status().evicted, 0U);
}

TEST_F(ParameterServerTest, NothingWorksBeforeThereAreTablesAndAGeneration) {
  servers_ = std::make_unique<Servers>(1);
  workers_.push_back(std::make_unique<TestWorker>(*servers_, 0, 1, 1));
  EXPECT_EQ(refusal_of([&] { client().begin_generation(1, {.num_workers = 1}); }),
            "bad request: the server has no tables yet");
  client().configure(one_table(1));
  worker(0).start(0, Ids{1});
  EXPECT_EQ(refusal_of([&] { static_cast<void>(worker(0).rows(0)); }), "bad request: no generation has begun");
  EXPECT_EQ(refusal_of([&] { client().begin_generation(0, {.num_workers = 1}); }),
            "bad request: generations count from 1");
  client().begin_generation(1, {.num_workers = 1});
  client().begin_generation(1, {.num_workers = 1});
  EXPECT_NE(
      refusal_of([&] { client().begin_generation(1, {.num_workers = 2}); }).find("has begun with 1 dense workers"),
      std::string::npos);
}

TEST_F(ParameterServerTest, MessagesOfAnyBytesAreErrorsAtMost) {
  begin(1, 1);
  std::uint64_t state = 1;
  auto const draw = [&] { return state = state * 6364136223846793005ULL + 1442695040888963407ULL; };
  for (int i = 0; i < 3000; ++i) {
    Body body(draw() % 64 * 8 / (i % 3 + 1));
    for (auto& each : body) each = static_cast<std::byte>(draw() >> 60);  // Small numbers: sizes that nearly fit.
    auto const kind = static_cast<std::uint32_t>(draw() >> 32) % 10;
    static_cast<void>(refusal_of([&] {
      client().finish(*client().requester().start({.kind = kind, .generation = draw() >> 62, .body = body}));
    }));
  }
  EXPECT_GE(client().status().generation, 1U);
}

TEST_F(ParameterServerTest, MessagesHaveNoBytesOfOtherMemory) {
  auto const tables = one_table(3);
  for (int round = 0; round < 20; ++round) {
    Body const dirty(200, static_cast<std::byte>(round));  // Freed memory that the next message may get.
    EXPECT_EQ(encode_tables(tables), encode_tables(tables));
    std::uint32_t const table = kTable, count = 1;
    std::uint64_t const id = 5;
    KeyList const keys{.ids = {&id, 1}, .tables = {&table, 1}, .counts = {&count, 1}};
    auto const body = encode_lookup({.step = 1, .worker = 2}, {&keys, 1});
    ASSERT_EQ(body.size(), 56U);
    EXPECT_EQ(body[44], std::byte{0}) << "between tables and counts";
  }
}

TEST_F(ParameterServerTest, TablesOptionsArriveAsTheyWereSent) {
  auto tables = one_table(7, kernels::OptimizerKind::kRowWiseAdam, embedding::Initializer::uniform(-0.1F, 0.3F, 99));
  auto& options = tables[0].options;
  options.optimizer.weight_decay = 0.25;
  options.optimizer.decay = kernels::WeightDecay::kDecoupled;
  options.max_rows = 1000;
  options.eviction = embedding::EvictionPolicy::kLeastFrequentlyUsed;
  options.min_count = 3;
  options.time_to_live = 17;
  options.hot_count = 2;
  tables[0].tables = {1, 5, 9};
  tables[0].reads_unknown_as_zeros = true;
  auto const decoded = decode_tables(encode_tables(tables));
  ASSERT_EQ(decoded.size(), 1U);
  EXPECT_EQ(encode_tables(decoded), encode_tables(tables));
  EXPECT_EQ(decoded[0].options.initializer.values().width, options.initializer.values().width);
  EXPECT_EQ(decoded[0].tables, tables[0].tables);
  auto truncated = encode_tables(tables);
  truncated.resize(truncated.size() - 8);
  EXPECT_THROW(static_cast<void>(decode_tables(truncated)), base::UsageError);
}

}  // namespace
}  // namespace headway::hybrid
