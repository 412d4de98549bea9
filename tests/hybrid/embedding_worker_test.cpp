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
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace headway::hybrid {
namespace {

/// A worker with servers, and a link to it.
class EmbeddingWorkerTest : public testing::Test {
 protected:
  void begin(std::size_t num_servers, StepLedger::Options const& options, std::size_t max_buffer_bytes = 1 << 20,
             std::vector<std::size_t> const& small = {}) {
    servers_ = std::make_unique<Servers>(num_servers);
    worker_ = std::make_unique<EmbeddingWorker>(EmbeddingWorkerOptions{
        .connect = [this] { return ends_of(*servers_); }, .timeout = kLong, .max_buffer_bytes = max_buffer_bytes});
    requester_ = connect();
    ask(WorkerRequest::kSetUp, encode_set_up(two_tables(), settings(), {}, small));
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
  /// Rows of the first merged table.
  [[nodiscard]] static std::uint64_t rows_of_large() {
    std::set<std::pair<std::uint32_t, std::int64_t>> keys;
    RandomBatch const batch(3);
    for (std::size_t feature = 0; feature < 2; ++feature) {
      for (auto const id : batch.ids[feature]) keys.emplace(batch.features[feature].table, id);
    }
    return keys.size();
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

TEST_F(EmbeddingWorkerTest, SmallTablesTravelAsRowIndices) {
  begin(2, {.num_workers = 1, .staleness = 2}, 1 << 20, {1});
  RandomBatch const batch(3);
  auto const& ids = batch.ids[2];  // Feature "c".
  for (std::uint64_t step = 0; step < 5; ++step) ask(WorkerRequest::kSubmit, submission({9, step}, batch));
  auto const fetch = [&](std::uint64_t step) {
    return decode_embeddings(ask(WorkerRequest::kFetch, encode_fetch({9, step}, {step, 0})));
  };
  auto const first = fetch(0);
  ASSERT_EQ(first.small_features.size(), 1U);
  ASSERT_EQ(first.small_rows.size(), 1U);
  EXPECT_TRUE(first.values[1].empty()) << "no embeddings of small tables";
  auto const& indices = first.small_features[0].indices;
  EXPECT_EQ(first.small_features[0].lengths, batch.lengths[2]);
  ASSERT_EQ(indices.size(), ids.size());
  std::map<std::int64_t, std::uint32_t> index_of;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(index_of.try_emplace(ids[i], indices[i]).first->second, indices[i]) << "an id has one index";
  }
  std::set<std::uint32_t> different;
  for (auto const& [id, index] : index_of) different.insert(index);
  EXPECT_EQ(different.size(), index_of.size()) << "an index has one id";
  auto const& rows = first.small_rows[0];
  EXPECT_EQ(std::set<std::uint32_t>(rows.indices.begin(), rows.indices.end()), different);
  embedding::ShardedTable reference(two_tables(), embedding::make_local_exchanger());
  auto expected = reference.begin(batch.features, {.mode = embedding::LookupMode::kRead});
  reference.finish(*expected);
  std::vector<float> initial(ids.size() * 2);
  reference.expand(*expected, 1, initial);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    auto const row = std::ranges::find(rows.indices, indices[i]) - rows.indices.begin();
    EXPECT_EQ(rows.embeddings[2 * row], initial[2 * i]);
    EXPECT_EQ(rows.embeddings[2 * row + 1], initial[2 * i + 1]);
    EXPECT_EQ(rows.are_stored[row], 0U);
  }
  EXPECT_EQ(fetch(1).small_rows[0].indices, rows.indices) << "the first answer may have been dropped unread";
  std::vector<float> const gradients = gradients_of(first.values[0]);
  std::vector<PartValues> const part{{.rate = 0.1, .gradients = gradients}, {}};
  ask(WorkerRequest::kDrop, encode_void({0, 0}, LossCause::kSkipped));
  EXPECT_EQ(fetch(2).small_rows[0].indices, rows.indices);
  ask(WorkerRequest::kGradients, encode_part({1, 0}, part));
  auto const later = fetch(3);
  EXPECT_TRUE(later.small_rows[0].indices.empty()) << "gradients tell that the rows are known";
  EXPECT_EQ(later.small_features[0].indices, indices);
  EXPECT_EQ((*servers_)[0].status().rows + (*servers_)[1].status().rows, rows_of_large()) << "servers make no rows";
  // A dense worker gives the rows back before a checkpoint.
  auto ends = ends_of(*servers_);
  for (std::uint32_t server = 0; server < 2; ++server) {
    RowsToStore stored{.merged = 1};
    for (std::size_t row = 0; row < rows.indices.size(); ++row) {
      if (rows.indices[row] % 2 != server) continue;
      stored.rows.indices.push_back(rows.indices[row] / 2);
      stored.rows.are_stored.push_back(1);
      stored.rows.counts.push_back(7);
      stored.rows.steps.push_back(3);
      for (int column = 0; column < 2; ++column) {
        stored.rows.embeddings.push_back(static_cast<float>(rows.indices[row]));
        stored.rows.states.push_back(0.25F);
      }
    }
    auto& client = *ends[server].client;
    client.finish(*client.start_store_rows(1, {&stored, 1}));
    stored.rows.indices.assign(1, 1000);
    stored.rows.embeddings.resize(2);
    stored.rows.states.resize(2);
    for (auto* const column : {&stored.rows.are_stored, &stored.rows.counts, &stored.rows.steps}) column->resize(1);
    auto const refusal = refusal_of([&] { client.finish(*client.start_store_rows(1, {&stored, 1})); });
    EXPECT_NE(refusal.find("merged table 1 has no row 1000"), std::string::npos) << refusal;
  }
  auto const read = decode_embeddings(ask(WorkerRequest::kRead, encode_fetch({9, 4}, {})));
  EXPECT_EQ(read.small_features[0].indices, indices) << "indices stay";
  auto const& now = read.small_rows[0];
  ASSERT_EQ(now.indices.size(), rows.indices.size());
  for (std::size_t row = 0; row < now.indices.size(); ++row) {
    EXPECT_EQ(now.are_stored[row], 1U);
    EXPECT_EQ(now.counts[row], 7U);
    EXPECT_EQ(now.steps[row], 3U);
    EXPECT_EQ(now.embeddings[2 * row], static_cast<float>(now.indices[row]));
    EXPECT_EQ(now.states[2 * row + 1], 0.25F);
  }
}

class NoId : public EmbeddingWorkerTest, public testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(Tables, NoId, testing::Bool(),
                         [](auto const& info) { return info.param ? "Small" : "Large"; });

TEST_P(NoId, ReachesADenseWorker) {
  begin(1, {.num_workers = 1}, 1 << 20, GetParam() ? std::vector<std::size_t>{1} : std::vector<std::size_t>{});
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

TEST_F(EmbeddingWorkerTest, AWorkerThatLeavesTakesNoBatchesAndGoesOnWithThoseThatItHas) {
  RandomBatch const batch(1);
  auto const one = submission({9, 0}, batch);
  begin(1, {.num_workers = 1}, one.size());
  ask(WorkerRequest::kSubmit, one);
  auto const waiting = start(WorkerRequest::kSubmit, submission({9, 1}, batch));
  while (worker_->status().waiting_loaders == 0) std::this_thread::yield();
  worker_->leave();
  EXPECT_EQ(requester_->wait(*waiting, kLong).value().code, ReplyCode::kLeaving);
  auto const later = start(WorkerRequest::kSubmit, submission({9, 2}, batch));
  EXPECT_EQ(requester_->wait(*later, kLong).value().code, ReplyCode::kLeaving);
  EXPECT_EQ(worker_->num_batches(), 1U);
  ask(WorkerRequest::kFetch, encode_fetch({9, 0}, {0, 0}));
  EXPECT_EQ(worker_->num_batches(), 1U) << "until it has ended";
  ask(WorkerRequest::kDrop, encode_void({0, 0}, LossCause::kSkipped));
  EXPECT_EQ(worker_->num_batches(), 0U);
  auto const status = worker_->status();
  EXPECT_EQ(status.submitted, 1U);
  EXPECT_EQ(status.waiting_loaders, 0U);
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
