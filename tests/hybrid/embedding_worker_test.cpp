// SPDX-License-Identifier: Apache-2.0

// An embedding worker between loaders and dense workers: a dense worker learns what a ShardedTable learns, and sees no
// id.

#include "headway/hybrid/embedding_worker.hpp"

#include "random_batch.hpp"
#include "server_fixture.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

namespace headway::hybrid {
namespace {

/// A worker with servers, and a link to it.
class EmbeddingWorkerTest : public testing::Test {
 protected:
  void begin(std::size_t num_servers, StepLedger::Options const& options, std::size_t max_buffer_bytes = 1 << 20) {
    servers_ = std::make_unique<Servers>(num_servers);
    worker_ = std::make_unique<EmbeddingWorker>(EmbeddingWorkerOptions{
        .connect = [this] { return ends_of(*servers_); }, .timeout = kLong, .max_buffer_bytes = max_buffer_bytes});
    requester_ = connect();
    ask(WorkerRequest::kSetUp, encode_set_up(two_tables(), settings()));
    ask(WorkerRequest::kBeginGeneration, encode_generation(options, 5));
  }
  [[nodiscard]] std::unique_ptr<Requester> connect() {
    auto [here, there] = make_two_ends();
    responders_.push_back(std::make_unique<Responder>(std::move(here), ResponderOptions{.incarnation = 1},
                                                      [this](Request& request) { worker_->handle(request); }));
    return std::make_unique<Requester>(std::move(there), kLong);
  }
  static std::vector<FeatureSetting> settings() {
    std::vector<FeatureSetting> settings;
    RandomBatch const batch(0);
    for (auto const& each : batch.features) {
      settings.push_back({.name = std::string(each.name), .table = each.table, .pooling = each.pooling});
    }
    return settings;
  }
  static Body submission(BatchName name, RandomBatch const& batch) {
    std::vector<FeatureIds> ids;
    for (std::size_t i = 0; i < batch.ids.size(); ++i)
      ids.push_back({.ids = batch.ids[i], .lengths = batch.lengths[i]});
    return encode_submit(name, ids);
  }
  Requester::CallPtr start(WorkerRequest kind, Body body) {
    return requester_->start({.kind = static_cast<std::uint32_t>(kind), .generation = 1, .body = std::move(body)});
  }
  Body ask(WorkerRequest kind, Body body) {
    return requester_->ask({.kind = static_cast<std::uint32_t>(kind), .generation = 1, .body = std::move(body)}, kLong);
  }
  Body take(Requester::CallPtr const& call) { return requester_->wait(*call, kLong).value().body; }

  std::unique_ptr<Servers> servers_;
  std::unique_ptr<EmbeddingWorker> worker_;
  std::vector<std::unique_ptr<Responder>> responders_;
  std::unique_ptr<Requester> requester_;
};

TEST_F(EmbeddingWorkerTest, ADenseWorkerLearnsWhatATableLearns) {
  begin(2, {.num_workers = 1});
  embedding::ShardedTable reference(two_tables(), embedding::make_local_exchanger());
  for (std::uint64_t step = 0; step < 10; ++step) {
    RandomBatch const batch(static_cast<unsigned>(step));
    ask(WorkerRequest::kSubmit, submission({9, step}, batch));
    auto const found = decode_embeddings(ask(WorkerRequest::kFetch, encode_fetch({9, step}, {step, 0})));
    auto expected = reference.begin(batch.features);
    reference.finish(*expected);
    std::vector<std::vector<float>> gradients;
    for (std::size_t merged = 0; merged < 2; ++merged) {
      auto same = found.values[merged];
      reference.expand(*expected, merged, same);
      ASSERT_EQ(found.values[merged], same) << "step " << step;
      gradients.push_back(gradients_of(same));
    }
    EXPECT_EQ(found.num_bags, (std::vector<std::uint64_t>{6, 6, batch.ids[2].size()}));
    std::vector<PartValues> const part{{.rate = 0.1, .gradients = gradients[0]},
                                       {.rate = 0.1, .gradients = gradients[1]}};
    ask(WorkerRequest::kGradients, encode_part({step, 0}, part));
    std::vector<std::span<float const>> const values{gradients[0], gradients[1]};
    reference.return_gradients(*expected, values);
    reference.apply_gradients(step + 1, {.rate = 0.1, .of_tables = {}});
  }
  RandomBatch const batch(99);
  ask(WorkerRequest::kSubmit, submission({9, 10}, batch));
  auto const read = decode_embeddings(ask(WorkerRequest::kRead, encode_fetch({9, 10}, {})));
  auto expected = reference.begin(batch.features, {.mode = embedding::LookupMode::kRead});
  reference.finish(*expected);
  for (std::size_t merged = 0; merged < 2; ++merged) {
    auto same = read.values[merged];
    reference.expand(*expected, merged, same);
    EXPECT_EQ(read.values[merged], same);
  }
  auto const counts = worker_->status();
  EXPECT_EQ(counts.submitted, 11U);
  EXPECT_EQ(counts.trained, 10U);
  EXPECT_EQ(counts.read, 1U);
  EXPECT_EQ(counts.buffered_bytes, 0U);
}

TEST_F(EmbeddingWorkerTest, NoIdReachesADenseWorker) {
  begin(1, {.num_workers = 1});
  constexpr std::int64_t kPlanted = 0x1122334455667788;
  RandomBatch batch(1);
  for (auto& ids : batch.ids) std::ranges::fill(ids, kPlanted);
  ask(WorkerRequest::kSubmit, submission({9, 0}, batch));
  auto const contains = [&](std::span<std::byte const> bytes) {
    std::string_view const all(reinterpret_cast<char const*>(bytes.data()), bytes.size());
    std::string planted(sizeof kPlanted, '\0');
    std::memcpy(planted.data(), &kPlanted, sizeof kPlanted);
    return all.find(planted.substr(0, 4)) != std::string_view::npos ||
           all.find(std::to_string(kPlanted)) != std::string_view::npos;
  };
  EXPECT_TRUE(contains(submission({9, 0}, batch))) << "the test looks for the right bytes";
  EXPECT_FALSE(contains(ask(WorkerRequest::kFetch, encode_fetch({9, 0}, {0, 0}))));
  auto const refusal = refusal_of([&] { static_cast<void>(ask(WorkerRequest::kFetch, encode_fetch({9, 0}, {1, 0}))); });
  EXPECT_FALSE(contains(std::as_bytes(std::span(refusal))));
}

TEST_F(EmbeddingWorkerTest, AFetchWaitsForTheStalenessAndGradientsDoNot) {
  begin(2, {.num_workers = 1, .staleness = 1});
  for (std::uint64_t step = 0; step < 3; ++step) {
    ask(WorkerRequest::kSubmit, submission({9, step}, RandomBatch(static_cast<unsigned>(step))));
  }
  auto const first = start(WorkerRequest::kFetch, encode_fetch({9, 0}, {0, 0}));
  auto const second = start(WorkerRequest::kFetch, encode_fetch({9, 1}, {1, 0}));
  take(first);
  take(second);
  EXPECT_NE(refusal_of([&] {
              ask(WorkerRequest::kFetch, encode_fetch({9, 2}, {2, 0}));
            }).find("2 batches are in flight"),
            std::string::npos);
  std::vector<PartValues> const none(2);
  ask(WorkerRequest::kGradients, encode_part({0, 0}, none));
  auto const third = start(WorkerRequest::kFetch, encode_fetch({9, 2}, {2, 0}));
  take(third);
  ask(WorkerRequest::kDrop, encode_void({.step = 1, .worker = 0}, LossCause::kSkipped));
  ask(WorkerRequest::kDrop, encode_void({.step = 2, .worker = 0}, LossCause::kSkipped));
  for (std::size_t server = 0; server < 2; ++server) EXPECT_EQ((*servers_)[server].status().num_applied, 3U);
}

TEST_F(EmbeddingWorkerTest, AGenerationThatBeginsBuffersBatchesWithoutGradientsAgain) {
  begin(2, {.num_workers = 1, .staleness = 1});
  for (std::uint64_t step = 0; step < 2; ++step) {
    ask(WorkerRequest::kSubmit, submission({9, step}, RandomBatch(static_cast<unsigned>(step))));
    ask(WorkerRequest::kFetch, encode_fetch({9, step}, {step, 0}));
  }
  ask(WorkerRequest::kGradients, encode_part({0, 0}, std::vector<PartValues>(2)));
  auto const in_second = [&](WorkerRequest kind, Body body) {
    return requester_->ask({.kind = static_cast<std::uint32_t>(kind), .generation = 2, .body = std::move(body)}, kLong);
  };
  in_second(WorkerRequest::kBeginGeneration, encode_generation({.num_workers = 1, .first_step = 1}, 6));
  EXPECT_EQ(worker_->status().buffered, 1U);
  in_second(WorkerRequest::kFetch, encode_fetch({9, 1}, {1, 0}));
  EXPECT_EQ(worker_->status().buffered_bytes, 0U);
  in_second(WorkerRequest::kGradients, encode_part({1, 0}, std::vector<PartValues>(2)));
  EXPECT_NE(refusal_of([&] { in_second(WorkerRequest::kFetch, encode_fetch({9, 0}, {2, 0})); }), "");
  for (std::size_t server = 0; server < 2; ++server) EXPECT_EQ((*servers_)[server].status().num_applied, 2U);
}

TEST_F(EmbeddingWorkerTest, AStepWithoutABatchIsDropped) {
  begin(2, {.num_workers = 1});
  ask(WorkerRequest::kDrop, encode_void({.step = 0, .worker = 0}, LossCause::kSkipped));
  for (std::size_t server = 0; server < 2; ++server) EXPECT_EQ((*servers_)[server].status().num_applied, 1U);
}

TEST_F(EmbeddingWorkerTest, ALoaderWaitsWhenTheBufferIsFull) {
  RandomBatch const batch(1);
  auto const size = submission({9, 0}, batch).size();
  begin(1, {.num_workers = 1}, 2 * size + 8);
  std::vector<Requester::CallPtr> calls;
  for (std::uint64_t number = 0; number < 5; ++number) {
    calls.push_back(start(WorkerRequest::kSubmit, submission({9, number}, batch)));
  }
  take(calls[0]);
  take(calls[1]);
  EXPECT_FALSE(requester_->wait(*calls[2], std::chrono::milliseconds(20)).has_value());
  EXPECT_EQ(worker_->status().waiting_loaders, 3U);
  EXPECT_LE(worker_->status().buffered_bytes, 2 * size + 8);
  ask(WorkerRequest::kFetch, encode_fetch({9, 0}, {0, 0}));
  take(calls[2]);
  EXPECT_FALSE(requester_->wait(*calls[3], std::chrono::milliseconds(20)).has_value());
  ask(WorkerRequest::kRead, encode_fetch({9, 1}, {}));
  ask(WorkerRequest::kRead, encode_fetch({9, 2}, {}));
  take(calls[3]);
  take(calls[4]);
}

TEST_F(EmbeddingWorkerTest, EachBatchIsInOnePlaceAndEndsForANamedCause) {
  RandomBatch const batch(1);
  auto const size = submission({9, 0}, batch).size();
  begin(2, {.num_workers = 1, .staleness = 1}, 3 * size);
  std::uint64_t state = 1;
  auto const draw = [&](std::uint64_t below) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (state >> 33) % below;
  };
  auto const expect_sum = [&] {
    auto const status = worker_->status();
    auto const ended = status.trained + status.read + std::accumulate(status.lost.begin(), status.lost.end(), 0UL);
    EXPECT_EQ(status.submitted, status.waiting_loaders + status.buffered + status.in_flight + ended);
  };
  constexpr std::array kCauses{LossCause::kSkipped, LossCause::kOverflow, LossCause::kRefused};
  std::vector<Requester::CallPtr> submissions;
  std::uint64_t next = 0, step = 0;
  std::vector<std::uint64_t> lost(kNumLossCauses);
  std::uint64_t trained = 0, read = 0;
  while (step < 60) {
    while (submissions.size() < next + 1 + draw(6)) {
      submissions.push_back(start(WorkerRequest::kSubmit, submission({9, submissions.size()}, batch)));
    }
    take(submissions[next]);
    expect_sum();
    if (draw(5) == 0) {
      ask(WorkerRequest::kRead, encode_fetch({9, next++}, {}));
      ++read;
    } else {
      auto const found = decode_embeddings(ask(WorkerRequest::kFetch, encode_fetch({9, next++}, {step, 0})));
      expect_sum();
      if (draw(3) == 0) {
        auto const cause = kCauses.at(draw(kCauses.size()));
        ask(WorkerRequest::kDrop, encode_void({.step = step, .worker = 0}, cause));
        ++lost[static_cast<std::size_t>(cause)];
      } else {
        bool const is_finite = draw(4) > 0;
        auto values = found.values[0];
        if (!is_finite) std::ranges::fill(values, std::numeric_limits<float>::quiet_NaN());
        std::vector<PartValues> const part{{.rate = 0.1, .gradients = values}, {.rate = 0.1}};
        EXPECT_EQ(ask(WorkerRequest::kGradients, encode_part({step, 0}, part)).empty(), is_finite);
        ++(is_finite ? trained : lost[static_cast<std::size_t>(LossCause::kNotFinite)]);
      }
      ++step;
    }
    expect_sum();
  }
  ask(WorkerRequest::kDrop, encode_void({.step = step, .worker = 0}, LossCause::kNoBatch));  // A step without a batch.
  submissions.push_back(start(WorkerRequest::kSubmit, submission({9, submissions.size()}, batch)));
  take(submissions[next]);
  ask(WorkerRequest::kFetch, encode_fetch({9, next}, {step + 1, 0}));
  auto const buffered = worker_->status().buffered;
  static_cast<void>(requester_->ask({.kind = static_cast<std::uint32_t>(WorkerRequest::kBeginGeneration),
                                     .generation = 2,
                                     .body = encode_generation({.num_workers = 1, .first_step = step}, 6)},
                                    kLong));
  expect_sum();
  auto const status = worker_->status();
  EXPECT_EQ(status.buffered, buffered + 1) << "the batch in flight may be fetched again, so it is not lost";
  EXPECT_EQ(status.in_flight, 0U);
  EXPECT_EQ(status.lost, lost);
  EXPECT_EQ(status.trained, trained);
  EXPECT_EQ(status.read, read);
  EXPECT_GT(status.loader_waits, 0U);
  EXPECT_GT(status.loader_wait_ns, 0U);
  EXPECT_EQ(decode_worker_status(ask(WorkerRequest::kStatus, {})).lost, lost);
  EXPECT_EQ((*servers_)[0].status().lost[static_cast<std::size_t>(LossCause::kNoBatch)], 1U);
}

TEST_F(EmbeddingWorkerTest, MistakesAreErrorsThatNameTheBatchAndTheWorkerGoesOn) {
  begin(1, {.num_workers = 1});
  RandomBatch const batch(1);
  auto const error = [&](WorkerRequest kind, Body body) {
    return refusal_of([&] { static_cast<void>(ask(kind, body)); });
  };
  EXPECT_EQ(error(WorkerRequest::kFetch, encode_fetch({9, 0}, {0, 0})),
            "bad request: batch 0 of loader 9 has not been submitted");
  ask(WorkerRequest::kSubmit, submission({9, 4}, batch));
  EXPECT_EQ(error(WorkerRequest::kSubmit, submission({9, 4}, batch)),
            "bad request: batch 4 of loader 9 has come before, or a later one of the loader has");
  EXPECT_EQ(error(WorkerRequest::kGradients, encode_part({0, 0}, std::vector<PartValues>(2))),
            "bad request: batch of step 0, worker 0: it was not fetched here, or has ended");
  ask(WorkerRequest::kFetch, encode_fetch({9, 4}, {0, 0}));
  EXPECT_EQ(error(WorkerRequest::kFetch, encode_fetch({9, 4}, {1, 0})),
            "bad request: batch 4 of loader 9 was fetched before, or waits for room");
  float const one = 1;
  EXPECT_NE(error(WorkerRequest::kGradients,
                  encode_part({0, 0}, std::vector<PartValues>{{.rate = 1, .gradients = {&one, 1}}, {}}))
                .find("merged table 0 has 1 gradients instead of 48"),
            std::string::npos);
  std::vector<std::int64_t> const ids{1, 2, 3}, lengths{1, 1};
  std::vector<FeatureIds> const wrong{{.ids = ids, .lengths = lengths}, {}, {}};
  EXPECT_EQ(error(WorkerRequest::kSubmit, encode_submit({9, 5}, wrong)),
            "bad request: batch 5 of loader 9, feature a: lengths add up to 2, and there are 3 ids");
  auto other = two_tables();
  other[0].options.dim = 8;
  EXPECT_NE(error(WorkerRequest::kSetUp, encode_set_up(other, settings())).find("other tables or features"),
            std::string::npos);
  EXPECT_NE(refusal_of([&] {
              static_cast<void>(requester_->ask({.kind = static_cast<std::uint32_t>(WorkerRequest::kFetch),
                                                 .generation = 0,
                                                 .body = encode_fetch({9, 4}, {0, 0})},
                                                kLong));
            }).find("old generation"),
            std::string::npos);
  ask(WorkerRequest::kDrop, encode_void({.step = 0, .worker = 0}, LossCause::kSkipped));
}

TEST_F(EmbeddingWorkerTest, ALostServerIsTheAnswerToWhoWaits) {
  begin(2, {.num_workers = 2});
  ask(WorkerRequest::kSubmit, submission({9, 0}, RandomBatch(1)));
  ask(WorkerRequest::kSubmit, submission({9, 1}, RandomBatch(2)));
  ask(WorkerRequest::kFetch, encode_fetch({9, 0}, {0, 0}));
  ask(WorkerRequest::kGradients, encode_part({0, 0}, std::vector<PartValues>(2)));
  auto const held = start(WorkerRequest::kFetch, encode_fetch({9, 1}, {1, 0}));  // Waits for worker 1.
  servers_->end(1);
  auto const reply = requester_->wait(*held, kLong);
  ASSERT_TRUE(reply.has_value());
  EXPECT_EQ(reply->code, ReplyCode::kFailed);
  EXPECT_EQ(reply->text().find("server 1: "), 0U) << reply->text();
}

TEST_F(EmbeddingWorkerTest, MessagesOfAnyBytesAreErrorsAtMost) {
  begin(1, {.num_workers = 1});
  std::uint64_t state = 1;
  auto const draw = [&] { return state = state * 6364136223846793005ULL + 1442695040888963407ULL; };
  for (int i = 0; i < 3000; ++i) {
    Body body(draw() % 64 * 8 / (i % 3 + 1));
    for (auto& each : body) each = static_cast<std::byte>(draw() >> 60);
    auto const kind = static_cast<std::uint32_t>(draw() >> 32) % 10;
    auto const call = requester_->start({.kind = kind, .generation = draw() >> 63, .body = body});
    EXPECT_TRUE(requester_->wait(*call, kLong).has_value());
  }
}

}  // namespace
}  // namespace headway::hybrid
