// SPDX-License-Identifier: Apache-2.0

// Compressed messages: what is decoded is what was encoded, hostile ones are refused, and training with compressed ids
// gives the same bits, with compressed values nearly the same ones.

#include "headway/hybrid/compression.hpp"

#include "headway/hybrid/embedding_worker.hpp"
#include "headway/hybrid/worker_client.hpp"
#include "random_batch.hpp"
#include "server_fixture.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace headway::hybrid {
namespace {

constexpr Compression kIds{.ids = true, .values = false}, kValues{.ids = false, .values = true},
    kBoth{.ids = true, .values = true};

std::vector<FeatureSetting> settings() {
  std::vector<FeatureSetting> settings;
  RandomBatch const batch(0);
  for (auto const& each : batch.features) {
    settings.push_back({.name = std::string(each.name), .table = each.table, .pooling = each.pooling});
  }
  return settings;
}

std::vector<FeatureIds> ids_of(RandomBatch const& batch) {
  std::vector<FeatureIds> ids;
  for (std::size_t i = 0; i < batch.ids.size(); ++i) ids.push_back({.ids = batch.ids[i], .lengths = batch.lengths[i]});
  return ids;
}

/// Two servers, an embedding worker, and a dense worker that is its own loader.
class Job {
 public:
  explicit Job(Compression compression, StepLedger::Options const& options = {.num_workers = 1})
      : worker_({.connect = [this] { return ends_of(servers_); }, .timeout = kLong}), client_(connect()) {
    client_->set_up(two_tables(), settings(), compression);
    client_->begin_generation(1, options, 5);
  }

  [[nodiscard]] std::unique_ptr<WorkerClient> connect() {
    auto [here, there] = make_two_ends();
    responders_.push_back(std::make_unique<Responder>(std::move(here), ResponderOptions{.incarnation = 1},
                                                      [this](Request& request) { worker_.handle(request); }));
    return std::make_unique<WorkerClient>("worker", std::move(there), kLong);
  }

  /// A step on a batch. @returns its embeddings
  Embeddings train(std::uint64_t step, RandomBatch const& batch) {
    client_->submit({9, step}, ids_of(batch));
    auto const fetch = client_->start_fetch(1, {9, step}, {step, 0});
    auto found = client_->wait_embeddings(*fetch, {step, 0});
    std::vector<std::vector<float>> gradients;
    for (auto const& values : found.values) gradients.push_back(gradients_of(values));
    std::vector<PartValues> const part{{.rate = 0.1, .gradients = gradients[0]},
                                       {.rate = 0.1, .gradients = gradients[1]}};
    auto const end = client_->start_gradients(1, {step, 0}, part, found);
    client_->finish(*end, {step, 0});
    return found;
  }
  /// The embeddings of some steps, and those of a read behind them.
  std::vector<Embeddings> train(std::uint64_t num_steps) {
    std::vector<Embeddings> all;
    for (std::uint64_t step = 0; step < num_steps; ++step) {
      all.push_back(train(step, RandomBatch(static_cast<unsigned>(step))));
    }
    client_->submit({9, num_steps}, ids_of(RandomBatch(99)));
    all.push_back(client_->read({9, num_steps}));
    return all;
  }
  [[nodiscard]] ParameterServer& server(std::size_t index) { return servers_[index]; }
  [[nodiscard]] WorkerStatus worker_status() const { return worker_.status(); }

 private:
  Servers servers_{2};
  EmbeddingWorker worker_;
  std::vector<std::unique_ptr<Responder>> responders_;
  std::unique_ptr<WorkerClient> client_;
};

TEST(Compression, OfIdsChangesNoBit) {
  Job plain({}), compressed(kIds);
  auto const expected = plain.train(10), found = compressed.train(10);
  for (std::size_t step = 0; step < expected.size(); ++step) {
    EXPECT_EQ(found[step].values, expected[step].values) << "step " << step;
    EXPECT_EQ(found[step].num_bags, expected[step].num_bags);
  }
}

TEST(Compression, OfValuesRoundsThemAndIsDeterministic) {
  Job plain({}), compressed(kBoth), again(kBoth);
  auto const expected = plain.train(10), found = compressed.train(10), same = again.train(10);
  double largest = 0;
  for (std::size_t step = 0; step < expected.size(); ++step) {
    EXPECT_EQ(found[step].values, same[step].values) << "step " << step;
    EXPECT_EQ(found[step].num_bags, expected[step].num_bags);
    for (std::size_t merged = 0; merged < 2; ++merged) {
      auto const &here = found[step].values[merged], &there = expected[step].values[merged];
      ASSERT_EQ(here.size(), there.size());
      for (std::size_t i = 0; i < here.size(); ++i) {
        largest = std::max<double>(largest, std::abs(here[i] - there[i]));
        EXPECT_NEAR(here[i], there[i], 0.02) << "step " << step;
      }
    }
  }
  EXPECT_GT(largest, 0) << "values are rounded";
}

TEST(Compression, OfAnotherTrainerIsAnErrorThatNamesIt) {
  Job job(kIds);
  auto const other = job.connect();
  EXPECT_EQ(
      refusal_of([&] { other->set_up(two_tables(), settings(), kBoth); }),
      "bad request: worker: the embedding worker has compression of ids on and of values off, and the request has "
      "compression of ids on and of values on");
  other->set_up(two_tables(), settings(), kIds);
  Servers servers(1);
  auto const clients = servers.connect(), later = servers.connect();
  clients[0]->configure(two_tables(), kValues);
  clients[0]->configure(two_tables(), kValues);
  EXPECT_EQ(refusal_of([&] { later[0]->configure(two_tables()); }),
            "bad request: the server has compression of ids off and of values on, and the request has compression of "
            "ids off and of values off");
}

TEST(Compression, CountsBytesBeforeAndAfter) {
  Job plain({}), compressed(kBoth);
  plain.train(5);
  compressed.train(5);
  auto const expect_counts = [](MessageBytes const& here, MessageBytes const& without, bool has_many_ids) {
    EXPECT_EQ(without.plain_ids, without.sent_ids);
    EXPECT_EQ(without.plain_values, without.sent_values);
    EXPECT_LT(here.sent_values, here.plain_values);
    if (has_many_ids) {
      EXPECT_LT(here.sent_ids, here.plain_ids);
    }
    EXPECT_NEAR(static_cast<double>(here.plain_ids) / static_cast<double>(without.sent_ids), 1, 0.05);
    EXPECT_NEAR(static_cast<double>(here.plain_values) / static_cast<double>(without.sent_values), 1, 0.1);
  };
  for (std::size_t server = 0; server < 2; ++server) {
    expect_counts(compressed.server(server).status().messages, plain.server(server).status().messages, true);
  }
  expect_counts(compressed.worker_status().messages, plain.worker_status().messages, false);
}

TEST(Compression, BagsOfTheSameIdTravelOnce) {
  RandomBatch batch(3);
  batch.ids[2].assign(40, 7);  // The feature without pooling: 40 embeddings of an id.
  batch.lengths[2] = {40, 0, 0, 0, 0, 0};
  batch.features[2].ids = {batch.ids[2].data(), batch.ids[2].size()};
  Job compressed(kValues), plain({});
  auto const found = compressed.train(0, batch), expected = plain.train(0, batch);
  ASSERT_EQ(found.values[1].size(), 80U);
  EXPECT_EQ(found.distinct_bags[1], std::vector<std::uint32_t>(40));
  for (std::size_t i = 0; i < 80; ++i) EXPECT_NEAR(found.values[1][i], expected.values[1][i], 1e-3);
  // Their gradients are added, so the row moves by the sum of 40.
  auto const moved = compressed.train(1, batch), there = plain.train(1, batch);
  for (std::size_t i = 0; i < 80; ++i) EXPECT_NEAR(moved.values[1][i], there.values[1][i], 2e-3);
  auto const bytes = compressed.worker_status().messages;
  EXPECT_LT(bytes.sent_values * 2, bytes.plain_values);
}

TEST(Compression, KeepsGradientsThatAreNotFinite) {
  Servers servers(1);
  auto const clients = servers.connect();
  auto& client = *clients[0];
  client.configure(one_table(3), kBoth);
  client.begin_generation(1, {.num_workers = 1});
  std::vector<std::uint64_t> const ids{5};
  std::vector<std::uint32_t> const tables{kTable}, counts{1};
  KeyList const keys{.ids = ids, .tables = tables, .counts = counts};
  std::uint64_t step = 0;
  for (float const bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 1e30F}) {
    auto const lookup = client.start_lookup(1, {step, 0}, {&keys, 1});
    static_cast<void>(client.requester().await(*lookup, kLong, "no rows came"));
    std::vector<float> const gradients{1, bad, 2};
    PartValues const part{.rate = 1, .gradients = gradients};
    client.finish(*client.start_part(1, {step++, 0}, {&part, 1}));
  }
  auto const status = client.status();
  EXPECT_EQ(status.void_not_finite, 2U);
  EXPECT_EQ(status.lost.at(static_cast<std::size_t>(LossCause::kNotFinite)), 2U);
  EXPECT_EQ(status.parts, 1U) << "1e30 is finite, and larger than any float16";
}

TEST(Compression, DistinctBagsAreThoseOfOneIdOfWeightOne) {
  std::vector<std::int64_t> const ids{7, 8, 7, 7, 8, 8}, lengths{1, 2, 1, 0, 1, 0, 1};
  std::vector<float> const weights{1, 1, 1, 1, 2, 1};
  auto const indices = [&](embedding::Pooling pooling, std::span<float const> of_ids) {
    embedding::Feature const feature{.name = "a",
                                     .table = 1,
                                     .pooling = pooling,
                                     .ids = {ids.data(), ids.size()},
                                     .lengths = {lengths.data(), lengths.size()},
                                     .weights = of_ids};
    std::vector<std::size_t> const dims{4};
    embedding::RoutedBatch const batch(embedding::make_host_batch_device(), {&feature, 1}, {{1, 0}}, dims, 3);
    return batch.distinct_bags(0);
  };
  using Indices = std::vector<std::uint32_t>;
  EXPECT_EQ(indices(embedding::Pooling::kNone, {}), (Indices{0, 1, 0, 0, 1, 1}));
  // Lists: 7; 8 7; 7; none; 8; none; 8.
  EXPECT_EQ(indices(embedding::Pooling::kSum, {}), (Indices{0, 1, 0, 2, 3, 2, 3}));
  EXPECT_EQ(indices(embedding::Pooling::kSum, weights), (Indices{0, 1, 0, 2, 3, 2, 4}));
}

TEST(Compression, GradientsOfDistinctBagsAreAddedAndSpread) {
  std::vector<std::uint32_t> const distinct{0, 1, 0, 2, 1, 0};
  std::vector<float> const gradients{1, 10, 2, 20, 4, 40, 8, 80, 16, 160, 32, 320};
  auto const sums = sum_distinct(distinct, 2, gradients);
  EXPECT_EQ(sums, (std::vector<float>{37, 370, 18, 180, 8, 80}));
  EXPECT_EQ(num_distinct(distinct), 3U);
  EXPECT_EQ(spread_distinct(distinct, 2, sums), (std::vector<float>{37, 370, 18, 180, 0, 0, 8, 80, 0, 0, 0, 0}));
}

/// Messages of each kind, and their decoders.
struct Messages {
  Messages() : batch(4) {
    std::mt19937_64 random(1);
    for (std::uint64_t i = 0; i < 100; ++i) {
      ids.push_back(random());
      counts.push_back(1 + static_cast<std::uint32_t>(i) % 7);
      tables.push_back(i < 50 ? 1 : 2);
      gradients.push_back(static_cast<float>(i) - 50);
    }
    KeyList const keys{.ids = ids, .tables = tables, .counts = counts};
    std::vector<KeyList> const lists{keys, {}};
    lookup = encode_lookup({.step = 3, .worker = 4}, lists, 25, kBoth);
    std::vector<PartValues> const values{{.rate = 0.5, .gradients = gradients}, {.rate = 1}};
    part = encode_part({.step = 3, .worker = 4}, values, dims);
    submit = encode_submit({.loader = 5, .number = 6}, ids_of(batch), kBoth);
    Embeddings found{.num_bags = {25, 10}, .values = {gradients, {1, 2, 1, 2, 3, 4}}, .distinct_bags = {{}, {0, 0, 1}}};
    embeddings = encode_embeddings(found, dims);
  }

  std::vector<std::size_t> const dims{4, 2};
  RandomBatch batch;
  std::vector<std::uint64_t> ids;
  std::vector<std::uint32_t> tables, counts;
  std::vector<float> gradients;
  Body lookup, part, submit, embeddings;
};

TEST(CompressedMessages, KeepTheirContents) {
  Messages const messages;
  auto const lookup = decode_lookup(messages.lookup, 2, kBoth);
  EXPECT_EQ(lookup.batch.step, 3U);
  EXPECT_EQ(lookup.num_samples, 25U);
  ASSERT_TRUE(std::ranges::equal(lookup.tables.at(0).ids, messages.ids));
  EXPECT_TRUE(std::ranges::equal(lookup.tables[0].tables, messages.tables));
  EXPECT_TRUE(std::ranges::equal(lookup.tables[0].counts, messages.counts));
  EXPECT_TRUE(lookup.tables[1].ids.empty());
  EXPECT_GT(lookup.saved_bytes, 0);
  auto const part = decode_part(messages.part, 2, messages.dims);
  EXPECT_EQ(part.tables[0].rate, 0.5);
  EXPECT_TRUE(std::ranges::equal(part.tables[0].gradients, messages.gradients)) << "small integers are exact";
  auto const submit = decode_submit(messages.submit, 3, kBoth);
  EXPECT_EQ(submit.name, decode_submit_name(messages.submit));
  for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(std::ranges::equal(submit.features[i].ids, messages.batch.ids[i]));
  auto const embeddings = decode_embeddings(messages.embeddings, messages.dims);
  EXPECT_EQ(embeddings.values[1], (std::vector<float>{1, 2, 1, 2, 3, 4}));
  EXPECT_EQ(embeddings.distinct_bags[1], (std::vector<std::uint32_t>{0, 0, 1}));
}

TEST(CompressedMessages, OfFewKeysArePlain) {
  std::uint64_t const id = 77;
  std::uint32_t const table = 3, count = 1;
  KeyList const keys{.ids = {&id, 1}, .tables = {&table, 1}, .counts = {&count, 1}};
  auto const body = encode_lookup({}, {&keys, 1}, 25, kIds);
  EXPECT_EQ(body.size(), encode_lookup({}, {&keys, 1}).size() + 8);
  auto const decoded = decode_lookup(body, 1, kIds);
  EXPECT_EQ(decoded.tables[0].ids[0], id);
  EXPECT_EQ(decoded.saved_bytes, -8);
}

TEST(CompressedMessages, OfManyIdsInAFewBytesAreRefused) {
  std::vector<std::uint64_t> const ids(1000, 1);
  std::vector<std::uint32_t> const same(1000, 1);
  KeyList const keys{.ids = ids, .tables = same, .counts = same};
  auto const lookup = encode_lookup({}, {&keys, 1}, 25, kIds);
  EXPECT_LT(lookup.size(), 80U);
  EXPECT_THROW(static_cast<void>(decode_lookup(lookup, 1, kIds, 999)), base::UsageError);
  EXPECT_EQ(decode_lookup(lookup, 1, kIds, 1000).tables[0].ids.size(), 1000U);
  std::vector<std::int64_t> const equal(1000, 1);
  std::vector<FeatureIds> const features{{.ids = equal, .lengths = equal}};
  auto const submit = encode_submit({}, features, kIds);
  EXPECT_LT(submit.size(), 120U);
  EXPECT_THROW(static_cast<void>(decode_submit(submit, 1, kIds, 15'999)), base::UsageError);
  EXPECT_EQ(decode_submit(submit, 1, kIds, 16'000).features[0].ids.size(), 1000U);
}

TEST(CompressedMessages, ThatWereChangedAreRefusedOrDecoded) {
  Messages const messages;
  std::mt19937_64 random(2);
  std::size_t num_refused = 0;
  auto const change = [&](Body const& valid, auto const& decode) {
    for (int round = 0; round < 3000; ++round) {
      Body body = valid;
      for (auto changes = 1 + random() % 3; changes > 0; --changes) {
        body[random() % body.size()] = static_cast<std::byte>(random() % 2 == 0 ? random() : random() % 4);
      }
      if (random() % 4 == 0) body.resize(random() % (body.size() / 8 + 1) * 8);
      body.shrink_to_fit();
      try {
        static_cast<void>(decode(body));
      } catch (base::UsageError const&) {
        ++num_refused;
      }
    }
  };
  change(messages.lookup, [](Body const& body) { return decode_lookup(body, 2, kBoth); });
  change(messages.part, [&](Body const& body) { return decode_part(body, 2, messages.dims); });
  change(messages.submit, [](Body const& body) { return decode_submit(body, 3, kBoth, 1 << 20); });
  change(messages.embeddings, [&](Body const& body) { return decode_embeddings(body, messages.dims, 1 << 20); });
  EXPECT_GT(num_refused, 3000U);
}

}  // namespace
}  // namespace headway::hybrid
