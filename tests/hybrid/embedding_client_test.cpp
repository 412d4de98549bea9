// SPDX-License-Identifier: Apache-2.0

// Features of batches at several servers: with a staleness of 0 it learns as a ShardedTable does.

#include "headway/hybrid/embedding_client.hpp"

#include "random_batch.hpp"
#include "server_fixture.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

namespace headway::hybrid {
namespace {

std::unique_ptr<EmbeddingClient> connect(Servers& servers, std::chrono::milliseconds timeout = kLong) {
  return std::make_unique<EmbeddingClient>(ends_of(servers), two_tables(), timeout);
}

TEST(EmbeddingClient, LearnsAsATableOfOneProcess) {
  for (std::size_t const num_servers : {1, 2, 5}) {
    Servers servers(num_servers);
    auto const client = connect(servers);
    client->begin_generation(1, {.num_workers = 1});
    embedding::ShardedTable reference(two_tables(), embedding::make_local_exchanger());
    for (std::uint64_t step = 0; step < 12; ++step) {
      RandomBatch const batch(static_cast<unsigned>(step));
      client->start({step, 0}, batch.features);
      client->wait({step, 0});
      auto expected = reference.begin(batch.features);
      reference.finish(*expected);
      std::vector<std::vector<float>> gradients;
      for (std::size_t merged = 0; merged < 2; ++merged) {
        std::vector<float> rows(client->num_bags({step, 0}, merged) * two_tables()[merged].options.dim), same = rows;
        client->expand({step, 0}, merged, rows);
        reference.expand(*expected, merged, same);
        ASSERT_EQ(rows, same) << num_servers << " servers, step " << step;
        gradients.push_back(gradients_of(rows));
      }
      bool const has_second = step % 3 != 0;
      client->return_gradients({step, 0},
                               std::vector<EmbeddingClient::Gradients>{
                                   {.rate = 0.1, .values = gradients[0]},
                                   {.rate = 0.1, .values = has_second ? gradients[1] : std::vector<float>()}});
      client->finish({step, 0});
      std::vector<std::span<float const>> values{gradients[0], {}};
      if (has_second) values[1] = gradients[1];
      reference.return_gradients(*expected, values);
      reference.apply_gradients(step + 1, {.rate = 0.1, .of_tables = {}});
    }
    RandomBatch const batch(99);
    auto const read = client->read(batch.features);
    auto expected = reference.begin(batch.features, {.mode = embedding::LookupMode::kRead});
    reference.finish(*expected);
    for (std::size_t merged = 0; merged < 2; ++merged) {
      std::vector<float> rows(read.num_bags(merged) * read.dim(merged)), same = rows;
      read.expand(merged, rows);
      reference.expand(*expected, merged, same);
      EXPECT_EQ(rows, same);
    }
    std::uint64_t num_rows = 0;
    for (auto const& status : client->status()) num_rows += status.rows;
    EXPECT_EQ(num_rows, reference.table(0).size().rows + reference.table(1).size().rows);
  }
}

TEST(EmbeddingClient, NoMoreBatchesAreInFlightThanTheStalenessAllows) {
  Servers servers(2);
  auto const client = connect(servers);
  client->begin_generation(1, {.num_workers = 1, .staleness = 2});
  RandomBatch const batch(1);
  for (std::uint64_t step = 0; step < 3; ++step) client->start({step, 0}, batch.features);
  EXPECT_THROW(client->start({3, 0}, batch.features), base::UsageError);
  EXPECT_THROW(client->start({1, 0}, batch.features), base::UsageError);
  client->drop({0, 0});
  client->finish({0, 0});
  EXPECT_EQ(client->num_in_flight(0), 2U);
  client->start({3, 0}, batch.features);
  client->wait({3, 0});
  EXPECT_TRUE(client->is_ready({3, 0}));
}

TEST(EmbeddingClient, ABatchEndsOnce) {
  Servers servers(2);
  auto const client = connect(servers);
  client->begin_generation(1, {.num_workers = 1});
  RandomBatch const batch(1);
  std::vector<EmbeddingClient::Gradients> const none(2);
  EXPECT_THROW(client->finish({0, 0}), base::UsageError);
  client->start({0, 0}, batch.features);
  EXPECT_THROW(client->return_gradients({0, 0}, none), base::UsageError) << "the rows have not come";
  client->wait({0, 0});
  client->return_gradients({0, 0}, none);
  EXPECT_THROW(client->return_gradients({0, 0}, none), base::UsageError);
  EXPECT_THROW(client->drop({0, 0}), base::UsageError);
  client->finish({0, 0});
  EXPECT_THROW(client->wait({0, 0}), base::UsageError);
  client->drop({1, 0});  // A batch that was never started, such as one of a worker without data.
  client->finish({1, 0});
  for (auto const& status : client->status()) {
    EXPECT_EQ(status.num_applied, 2U);
    EXPECT_EQ(status.voids, 1U);
  }
}

TEST(EmbeddingClient, AMissingPartIsATimeoutThatNamesTheServer) {
  Servers servers(1);
  auto const client = connect(servers, std::chrono::seconds(2));
  client->begin_generation(1, {.num_workers = 2});
  RandomBatch const batch(1);
  client->start({0, 0}, batch.features);
  client->wait({0, 0});
  client->return_gradients({0, 0}, std::vector<EmbeddingClient::Gradients>(2));
  client->finish({0, 0});
  client->start({1, 0}, batch.features);
  EXPECT_FALSE(client->is_ready({1, 0}));
  try {
    client->wait({1, 0});
    FAIL() << "worker 1 sent nothing";
  } catch (base::OperationError const& error) {
    EXPECT_EQ(error.status().code(), base::StatusCode::kTimeout);
    EXPECT_EQ(std::string(error.what()).find("server 0: batch of step 1, worker 0: no rows came within 2000 ms"), 0U)
        << error.what();
  }
}

TEST(EmbeddingClient, ARefusedPartCanBeEndedByAVoidNotice) {
  Servers servers(2, {.is_strict = true});
  auto const client = connect(servers);
  client->begin_generation(1, {.num_workers = 1});
  RandomBatch const batch(1);
  client->start({0, 0}, batch.features);
  client->wait({0, 0});
  std::vector<float> const first(client->num_bags({0, 0}, 0) * 4, std::numeric_limits<float>::infinity());
  client->return_gradients(
      {0, 0}, std::vector<EmbeddingClient::Gradients>{{.rate = 1, .values = first}, {.rate = 1, .values = {}}});
  EXPECT_THROW(client->finish({0, 0}), RequestRefused);
  client->drop({0, 0});
  EXPECT_THROW(client->finish({0, 0}), RequestRefused) << "the other server";
  client->drop({0, 0});
  client->finish({0, 0});
  for (auto const& status : client->status()) EXPECT_EQ(status.num_applied, 1U);
}

TEST(EmbeddingClient, ALostServerIsNamedAtEachCall) {
  Servers servers(2);
  auto const client = connect(servers);
  client->begin_generation(1, {.num_workers = 1, .staleness = 1});
  RandomBatch const batch(1);
  client->start({0, 0}, batch.features);
  client->wait({0, 0});
  servers.end(1);
  auto const error_of = [](auto&& call) -> std::string {
    try {
      call();
    } catch (std::runtime_error const& error) {
      return error.what();
    }
    return "";
  };
  std::vector<EmbeddingClient::Gradients> const none(2);
  for (int again = 0; again < 2; ++again) {
    EXPECT_EQ(error_of([&] {
                if (again == 0) client->return_gradients({0, 0}, none);
                client->finish({0, 0});
              }).find("server 1: "),
              0U);
    EXPECT_EQ(error_of([&] {
                if (again == 0) client->start({1, 0}, batch.features);
                client->finish({0, 0});
              }).find("server 1: "),
              0U);
    EXPECT_EQ(error_of([&] {
                if (again == 0) client->wait({1, 0});
                client->finish({0, 0});
              }).find("server 1: "),
              0U);
  }
}

TEST(EmbeddingClient, TablesThatDifferAreAnErrorThatNamesTheServer) {
  Servers servers(1);
  auto const first = connect(servers);
  std::vector<ServerEnd> ends;
  ends.push_back({.name = "server 0 at ps:7000", .client = std::move(servers.connect()[0])});
  auto other = two_tables();
  other[1].options.dim = 8;
  try {
    EmbeddingClient const second(std::move(ends), other, kLong);
    FAIL() << "they were taken";
  } catch (RequestRefused const& refused) {
    EXPECT_EQ(std::string(refused.what()).find("server 0 at ps:7000: the server has these tables"), 0U);
  }
  EXPECT_THROW(EmbeddingClient({}, two_tables(), kLong), base::UsageError);
}

}  // namespace
}  // namespace headway::hybrid
