// SPDX-License-Identifier: Apache-2.0
#include "headway/serving/engine.hpp"

#include "engine_fixture.hpp"

#include <gtest/gtest.h>

#include <ctime>

namespace headway::serving {
namespace {

/// The score of each request alone, on one rank that has all rows.
std::vector<std::vector<float>> offline(std::vector<std::shared_ptr<Arrays>> const& requests,
                                        Manifest const& manifest = small_manifest()) {
  auto const rank = serve(nullptr, {}, manifest);
  std::vector<std::vector<float>> scores;
  for (auto const& arrays : requests) {
    auto reply = get(ask(*rank.engine, arrays));
    EXPECT_EQ(reply.error, "");
    scores.push_back(reply.outputs.at(0).values);
  }
  return scores;
}

std::vector<std::shared_ptr<Arrays>> random_requests(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::shared_ptr<Arrays>> requests;
  for (std::size_t i = 0; i < count; ++i) requests.push_back(random_arrays(random));
  return requests;
}

std::uint64_t count_of(EngineStatistics const& statistics, Outcome outcome) {
  return statistics.requests[static_cast<std::size_t>(outcome)];
}

TEST(Engine, a_request_gets_the_outputs_of_its_own_rows) {
  auto const rank = serve(nullptr);
  auto const arrays = std::make_shared<Arrays>();
  arrays->users = {7}, arrays->user_lengths = {1};
  arrays->history = {5, 6}, arrays->history_lengths = {2};
  arrays->items = {1, 2}, arrays->item_lengths = {1, 1}, arrays->num_items = {2};
  arrays->topics = {3, 99}, arrays->topic_lengths = {2, 0};  // Id 99 has no row, and so zeros.
  arrays->prices = {0.5F, 1.5F};
  auto const sum = [](std::uint64_t id, std::uint64_t table) {
    float value = 0;
    for (std::uint64_t column = 0; column < kDim; ++column) {
      value += 0.37F * static_cast<float>(id * (column + 1) % 11 + table);
    }
    return value;
  };
  float const of_user = sum(7, 1) + sum(5, 2) + sum(6, 2) + 2 + 2;
  auto const reply = get(ask(*rank.engine, arrays));
  EXPECT_EQ(reply.version, "v1");
  ASSERT_EQ(reply.num_items, 2);
  EXPECT_NEAR(reply.outputs.at(0).values[0], of_user + sum(1, 2) + sum(3, 3) / 2 + 0.5F, 1e-4);
  EXPECT_NEAR(reply.outputs.at(0).values[1], of_user + sum(2, 2) + 1.5F, 1e-4);
}

/// How rows are fetched: ranks, kind of fetcher, and the lag of a ring.
struct Way {
  int size;
  Kind kind;
  int max_lag = 0;
};

class EngineRanks : public testing::TestWithParam<Way> {};

TEST_P(EngineRanks, replies_have_the_bits_of_one_rank_whatever_is_in_the_batch) {
  auto const requests = random_requests(200, 1);
  auto const expected = offline(requests);
  auto const body = [&](std::shared_ptr<comm::Group> const& group) {
    auto const rank =
        serve(group, {.batch_delay = 200us, .max_in_flight = static_cast<std::size_t>(GetParam().max_lag) + 1},
              small_manifest(), 0ms, GetParam().kind);
    std::vector<std::pair<std::size_t, std::future<Reply>>> replies;
    for (std::size_t i = static_cast<std::size_t>(group->rank()); i < requests.size(); i += 2) {
      replies.emplace_back(i, ask(*rank.engine, requests[i]));
    }
    for (auto& [i, reply] : replies) {
      auto const got = get(std::move(reply));
      ASSERT_EQ(got.error, "");
      EXPECT_EQ(got.outputs.at(0).values, expected[i]) << "request " << i;
    }
    rank.engine->drain();
    auto const statistics = rank.engine->statistics();
    EXPECT_EQ(count_of(statistics, Outcome::kAnswered), replies.size());
    EXPECT_LT(statistics.batches, replies.size()) << "no batch had several requests";
  };
  run_ranks(GetParam().size, body, GetParam().max_lag);
}

TEST_P(EngineRanks, ranks_without_requests_serve_those_with_some_and_then_sleep) {
  run_ranks(
      GetParam().size,
      [&](std::shared_ptr<comm::Group> const& group) {
        auto const rank = serve(group, {}, small_manifest(), 0ms, GetParam().kind);
        std::mt19937 random(12);
        if (group->rank() == 0) {
          for (int i = 0; i < 20; ++i) EXPECT_EQ(get(ask(*rank.engine, random_arrays(random))).error, "");
        }
        static_cast<void>(group->wait(*group->barrier()));
        auto const cpu_before = std::clock();  // It counts all threads, so all ranks.
        std::this_thread::sleep_for(300ms);
        EXPECT_LT(static_cast<double>(std::clock() - cpu_before) / CLOCKS_PER_SEC, 0.06);
        static_cast<void>(group->wait(*group->barrier()));
      },
      GetParam().max_lag);
}

TEST_P(EngineRanks, a_rank_that_sleeps_notices_a_loss) {
  if (GetParam().size == 1) return;
  run_ranks(GetParam().size, [&](std::shared_ptr<comm::Group> const& group) {
    if (group->rank() != 0) {
      static_cast<void>(group->wait(*group->barrier()));
      if (group->rank() == 1) group->admin().abort("the test ends");
      return;
    }
    // A ring's tables are made by all ranks, so this fetcher has none.
    auto engine = Engine(std::make_shared<ServedModel>(small_manifest(), std::make_shared<SumModel>(small_manifest())),
                         make_fetcher(GetParam().kind, group), {});
    static_cast<void>(group->wait(*group->barrier()));
    std::stop_source never;
    EXPECT_TRUE(engine.wait_for_loss(never.get_token()));
    EXPECT_NE(engine.why_not_ready().find("rank "), std::string::npos);
  });
}

INSTANTIATE_TEST_SUITE_P(of_ranks, EngineRanks,
                         testing::Values(Way{1, Kind::kPairwise}, Way{2, Kind::kPairwise}, Way{4, Kind::kPairwise, 2},
                                         Way{1, Kind::kRing}, Way{2, Kind::kRing}, Way{4, Kind::kRing, 2}),
                         [](auto const& way) {
                           return (way.param.kind == Kind::kRing ? "ring" : "pairwise") +
                                  std::to_string(way.param.size);
                         });

TEST(Engine, a_batch_begins_when_it_is_full_or_its_first_request_has_waited) {
  auto const rank = serve(nullptr, {.max_rows = 8, .batch_delay = 300ms});
  std::mt19937 random(2);
  auto arrays = random_arrays(random, 1);
  auto const began = Clock::now();
  std::vector<std::future<Reply>> replies;
  for (int i = 0; i < 8; ++i) replies.push_back(ask(*rank.engine, arrays));
  for (auto& reply : replies) EXPECT_EQ(get(std::move(reply)).error, "");
  EXPECT_LT(Clock::now() - began, 250ms) << "a full batch waited";
  auto const alone = Clock::now();
  EXPECT_EQ(get(ask(*rank.engine, arrays)).error, "");
  EXPECT_GE(Clock::now() - alone, 300ms);
  rank.engine->drain();  // A batch is counted after its replies.
  EXPECT_EQ(rank.engine->statistics().batches, 2);
}

TEST(Engine, a_request_that_does_not_fit_is_refused_and_others_are_served) {
  auto const rank = serve(nullptr, {.max_rows = 10, .max_ids = 100});
  std::mt19937 random(3);
  auto const good = random_arrays(random);
  auto const error_of = [&](std::function<void(Arrays&)> const& change) {
    auto bad = std::make_shared<Arrays>(*good);
    change(*bad);
    auto const reply = get(ask(*rank.engine, bad));
    EXPECT_EQ(reply.outcome, Outcome::kInvalid);
    return reply.error;
  };
  auto pending = ask(*rank.engine, good);
  EXPECT_EQ(error_of([](Arrays& each) { each.topic_lengths[0] = -1; }), "topics.lengths: a number is negative");
  EXPECT_EQ(error_of([](Arrays& each) { each.topics.push_back(1); }).substr(0, 21), "topics.lengths add up");
  EXPECT_EQ(error_of([](Arrays& each) { each.users.clear(), each.user_lengths = {0}; }),
            "user.lengths: each list has exactly one id");
  EXPECT_EQ(error_of([](Arrays& each) { each.prices.push_back(1); }).substr(0, 10), "price has ");
  EXPECT_EQ(error_of([](Arrays& each) {
              each.topics.assign(101, 1);
              each.topic_lengths[0] = 101;
            }),
            "topics.ids has 101 ids, and the limit is 100");
  EXPECT_EQ(error_of([](Arrays& each) { each = {}; }), "the request has no items");
  EXPECT_EQ(error_of([](Arrays& each) { each.num_items = {-5}; }), "items: a number is negative");
  EXPECT_EQ(error_of([](Arrays& each) {
              each.num_items = {11};
              each.items.assign(11, 1), each.item_lengths.assign(11, 1);
              each.topics.clear(), each.topic_lengths.assign(11, 0), each.prices.assign(11, 0);
            }),
            "the request has 11 items, and the limit is 10");
  EXPECT_EQ(get(std::move(pending)).error, "");
  EXPECT_EQ(get(ask(*rank.engine, good)).error, "");
}

TEST(Engine, a_deadline_fires_while_the_model_is_stuck) {
  auto const rank = serve(nullptr, {.max_in_flight = 1}, small_manifest(), 2000ms);
  std::mt19937 random(4);
  auto const arrays = random_arrays(random);
  auto const began = Clock::now();
  auto computing = ask(*rank.engine, arrays, 100ms), waiting = ask(*rank.engine, arrays, 200ms);
  auto const first = get(std::move(computing)), second = get(std::move(waiting));
  EXPECT_LT(Clock::now() - began, 1500ms);
  EXPECT_EQ(first.outcome, Outcome::kDeadlineExceeded);
  EXPECT_EQ(first.error, "the deadline has passed while the model computed its batch");
  EXPECT_EQ(second.outcome, Outcome::kDeadlineExceeded);
  // Both may have come into one batch.
  EXPECT_EQ(second.error.substr(0, 30), "the deadline has passed while ");
}

TEST(Engine, requests_beyond_what_the_deadline_allows_are_refused_at_once) {
  auto const rank = serve(nullptr, {.max_rows = 1, .max_in_flight = 1}, small_manifest(), 20ms);
  std::mt19937 random(5);
  auto const arrays = random_arrays(random, 1);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(get(ask(*rank.engine, arrays)).error, "");
  std::vector<std::future<Reply>> replies;
  for (int i = 0; i < 100; ++i) replies.push_back(ask(*rank.engine, arrays, 400ms));
  std::size_t num_answered = 0, num_refused = 0, num_late = 0;
  for (auto& each : replies) {
    auto const reply = get(std::move(each));
    if (reply.outcome == Outcome::kAnswered) {
      ++num_answered;
    } else {
      EXPECT_EQ(reply.outcome, Outcome::kDeadlineExceeded);
      ++(reply.error.starts_with("the deadline cannot be met:") ? num_refused : num_late);
    }
  }
  EXPECT_EQ(num_answered + num_refused + num_late, 100);
  EXPECT_GE(num_answered, 1);  // 20 fit into 400 ms, on a host that is not busy.
  EXPECT_GE(num_refused, 70);
}

TEST(Engine, a_full_queue_refuses_by_rows_and_by_bytes) {
  std::mt19937 random(6);
  auto const arrays = random_arrays(random, 1);
  for (bool const by_rows : {true, false}) {
    EngineOptions options{.max_rows = 1, .max_in_flight = 1};
    if (by_rows) options.max_queued_rows = 3;
    if (!by_rows) options.max_queued_bytes = 200;
    auto const rank = serve(nullptr, options, small_manifest(), 100ms);
    std::vector<std::future<Reply>> replies;
    for (int i = 0; i < 20; ++i) replies.push_back(ask(*rank.engine, arrays));
    std::size_t num_full = 0;
    for (auto& each : replies) {
      auto const reply = get(std::move(each));
      if (reply.outcome != Outcome::kQueueFull) continue;
      ++num_full;
      EXPECT_EQ(reply.error.substr(0, 18), "the queue is full:");
    }
    EXPECT_GE(num_full, 10);
    EXPECT_LT(num_full, 20);
  }
}

TEST(Engine, an_exception_of_the_model_ends_its_batch_alone) {
  auto const rank = serve(nullptr);
  std::mt19937 random(7);
  auto const arrays = random_arrays(random);
  rank.dense->throws = true;
  auto const failed = get(ask(*rank.engine, arrays));
  EXPECT_EQ(failed.outcome, Outcome::kFailed);
  EXPECT_EQ(failed.error, "the model has failed: the model is broken");
  rank.dense->throws = false;
  EXPECT_EQ(get(ask(*rank.engine, arrays)).error, "");
}

TEST(Engine, an_exception_after_the_model_ends_its_batch_alone) {
  auto is_good = std::make_shared<std::atomic<bool>>(true);
  auto const rank = serve(nullptr, {.on_batch = [is_good](BatchRecord const&) {
                            if (!*is_good) throw std::runtime_error("the trace is broken");
                          }});
  std::mt19937 random(7);
  auto const arrays = random_arrays(random);
  for (bool const good : {true, false, true}) {
    *is_good = good;
    EXPECT_EQ(get(ask(*rank.engine, arrays)).error, "");
  }
}

TEST(Engine, draining_answers_what_was_accepted_and_serves_peers_until_all_drain) {
  std::atomic<bool> is_first_draining = false;
  run_ranks(2, [&](std::shared_ptr<comm::Group> const& group) {
    auto const rank = serve(group, {.batch_delay = 50ms});
    std::mt19937 random(8);
    auto const arrays = random_arrays(random);
    if (group->rank() == 0) {
      auto accepted = ask(*rank.engine, arrays);
      std::jthread const draining([&] { rank.engine->drain(); });
      EXPECT_EQ(get(std::move(accepted)).error, "");
      EXPECT_FALSE(rank.engine->is_ready());
      auto const refused = get(ask(*rank.engine, arrays));
      EXPECT_EQ(refused.outcome, Outcome::kUnavailable);
      EXPECT_EQ(refused.error, "the server is shutting down");
      is_first_draining = true;
    } else {
      while (!is_first_draining) std::this_thread::sleep_for(1ms);
      for (int i = 0; i < 20; ++i) EXPECT_EQ(get(ask(*rank.engine, random_arrays(random))).error, "");
      rank.engine->drain();
    }
  });
}

TEST(Engine, a_lost_rank_is_named_to_every_request) {
  std::atomic<bool> is_serving = false;
  run_ranks(2, [&](std::shared_ptr<comm::Group> group) {
    if (group->rank() == 1) {
      // Leaves without a word while rank 0 waits for its rows.
      while (!is_serving) std::this_thread::sleep_for(1ms);
      group.reset();
      return;
    }
    auto const rank = serve(group);
    std::mt19937 random(9);
    std::vector<std::future<Reply>> replies;
    for (int i = 0; i < 20; ++i) replies.push_back(ask(*rank.engine, random_arrays(random)));
    is_serving = true;
    for (auto& each : replies) {
      auto const reply = get(std::move(each));
      if (reply.outcome == Outcome::kAnswered) continue;  // It needed no rows of rank 1.
      EXPECT_EQ(reply.outcome, Outcome::kUnavailable);
      EXPECT_NE(reply.error.find("rank 1"), std::string::npos) << reply.error;
    }
    while (rank.engine->is_ready()) std::this_thread::sleep_for(1ms);
    auto const later = get(ask(*rank.engine, random_arrays(random)));
    EXPECT_EQ(later.outcome, Outcome::kUnavailable);
    EXPECT_NE(later.error.find("rank 1"), std::string::npos) << later.error;
  });
}

TEST(Engine, a_rank_that_does_not_answer_is_named_at_the_deadline) {
  run_ranks(2, [&](std::shared_ptr<comm::Group> const& group) {
    std::mt19937 random(10);
    if (group->rank() == 1) {  // It is connected, and answers nobody.
      static_cast<void>(group->wait(*group->barrier()));
      return;
    }
    {
      auto manifest = small_manifest();
      auto fetcher = make_pairwise_fetcher(group, nullptr);
      fetcher->add_version(manifest.number, small_tables(manifest, 0, 2));
      Engine engine(std::make_shared<ServedModel>(manifest, std::make_shared<SumModel>(manifest)), std::move(fetcher),
                    {});
      auto const reply = get(ask(engine, random_arrays(random), 200ms));
      EXPECT_EQ(reply.outcome, Outcome::kDeadlineExceeded);
      EXPECT_EQ(reply.error, "the deadline has passed while rank 1 had not sent its rows");
      // The batch stays in flight, so that drain() would wait for the rank: let it go.
      group->admin().abort("the test ends");
    }
  });
}

TEST_P(EngineRanks, an_error_in_the_loop_of_a_rank_ends_the_group_and_names_the_rank) {
  if (GetParam().size == 1) return;
  run_ranks(
      GetParam().size,
      [&](std::shared_ptr<comm::Group> const& group) {
        EngineOptions options{.max_in_flight = static_cast<std::size_t>(GetParam().max_lag) + 1};
        if (group->rank() == 1) {  // It stands for an error that nobody has thought of.
          options.delay_before_keys = []() -> std::chrono::nanoseconds { throw std::runtime_error("unexpected"); };
        }
        auto const rank = serve(group, options, small_manifest(), 0ms, GetParam().kind);
        std::mt19937 random(13);
        if (group->rank() == 1) {
          auto const lost = get(ask(*rank.engine, random_arrays(random)));
          EXPECT_EQ(lost.outcome, Outcome::kFailed);
          EXPECT_EQ(lost.error, "an internal error has ended the batch of the request");
        }
        std::stop_source never;
        EXPECT_TRUE(rank.engine->wait_for_loss(never.get_token()));
        auto const reply = get(ask(*rank.engine, random_arrays(random)));
        EXPECT_EQ(reply.outcome, Outcome::kUnavailable);
        EXPECT_NE(reply.error.find("unexpected"), std::string::npos) << reply.error;
        if (group->rank() == 1) return;
        EXPECT_NE(reply.error.find("rank 1"), std::string::npos) << reply.error;
      },
      GetParam().max_lag);
}

TEST(Engine, a_group_without_requests_sleeps) {
  run_ranks(4, [&](std::shared_ptr<comm::Group> const& group) {
    auto const rank = serve(group);
    std::mt19937 random(11);
    EXPECT_EQ(get(ask(*rank.engine, random_arrays(random))).error, "");
    static_cast<void>(group->wait(*group->barrier()));
    auto const cpu_before = std::clock();  // It counts all threads, so all ranks.
    std::this_thread::sleep_for(1s);
    EXPECT_LT(static_cast<double>(std::clock() - cpu_before) / CLOCKS_PER_SEC, 0.15);
    static_cast<void>(group->wait(*group->barrier()));
  });
}

}  // namespace
}  // namespace headway::serving
