// SPDX-License-Identifier: Apache-2.0

// Checkpoints of a parameter server: the step that they have, and what a load replaces.

#include "headway/embedding/record_file.hpp"
#include "server_fixture.hpp"
#include "temporary_directory.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

namespace headway::hybrid {
namespace {

using std::chrono::milliseconds;
using Ids = std::vector<std::uint64_t>;

/// A server with a table of one column, and a worker.
class ServerCheckpointsTest : public testing::Test {
 protected:
  void begin(std::uint32_t staleness, bool is_exact = false) {
    client().configure(one_table(1));
    client().begin_generation(1, {.num_workers = 1, .staleness = staleness, .is_exact = is_exact});
  }
  [[nodiscard]] ServerClient& client() { return worker_.client(0); }
  Body take(Requester::CallPtr const& call) { return client().requester().await(*call, kLong, "no answer came"); }
  [[nodiscard]] std::string path(std::string const& name = "rows.bin") const {
    return (folder_.path() / name).string();
  }
  [[nodiscard]] std::vector<SavedTable> save(std::uint64_t step) {
    return decode_saved(take(client().start_save(1, {.step = step, .end = step, .path = path()})));
  }
  /// All blocks of a file.
  [[nodiscard]] LoadArgs load_args(std::vector<SavedTable> const& saved, std::uint64_t step) const {
    LoadArgs load{.step = step, .sources = {}, .tables = {{.table_ids = {kTable}, .initial_state = {}}}};
    for (auto const& block : saved.at(0).blocks) {
      load.sources.push_back({.path = path(), .block = block, .dim = saved[0].dim, .state_size = saved[0].state_size});
    }
    return load;
  }
  [[nodiscard]] float read(std::uint64_t id) {
    std::uint32_t const table = kTable, count = 1;
    KeyList const keys{.ids = {&id, 1}, .tables = {&table, 1}, .counts = {&count, 1}};
    return client().read({&keys, 1}).at(0);
  }
  void train(std::uint64_t step) {
    worker_.start(step, Ids{5, 6});
    static_cast<void>(worker_.rows(step));
    worker_.finish(step, std::vector<float>{1, 2}, 1);
  }

  TemporaryDirectory folder_;
  Servers servers_{1};
  TestWorker worker_{servers_, 0, 1, 1};
};

TEST_F(ServerCheckpointsTest, WaitsForItsStepAndHasNoLaterOne) {
  begin(1);
  worker_.start(0, Ids{5, 6});
  static_cast<void>(worker_.rows(0));
  auto const waiting = client().start_save(1, {.step = 1, .end = 2, .path = path()});
  EXPECT_FALSE(client().requester().wait(*waiting, milliseconds(30)).has_value());
  worker_.finish(0, std::vector<float>{1, 2}, 1);
  auto const saved = decode_saved(take(waiting));
  ASSERT_EQ(saved.size(), 1U);
  ASSERT_EQ(saved[0].blocks.size(), 1U);
  EXPECT_EQ(saved[0].blocks[0].num_keys, 2U);
  EXPECT_EQ(std::filesystem::file_size(path()), saved[0].blocks[0].num_bytes);
  train(1);
  EXPECT_NE(refusal_of([&] { static_cast<void>(save(1)); }).find("has applied steps below 2"), std::string::npos);
}

TEST_F(ServerCheckpointsTest, WithoutASharedClockItIsWrittenAtOnceAndTheTrainingGoesOn) {
  client().configure(one_table(1));
  client().begin_generation(1, {.num_workers = 2, .sums_parts = false, .shares_clock = false});
  train(0);
  worker_.start(1, Ids{5});
  static_cast<void>(worker_.rows(1));
  EXPECT_EQ(save(7).at(0).blocks.at(0).num_keys, 2U) << "no step is waited for";
  worker_.finish(1, std::vector<float>{1}, 1);
  EXPECT_EQ(read(5), -2);
  EXPECT_EQ(client().status().generation, 1U);
}

TEST_F(ServerCheckpointsTest, InExactOrderTheEndOfLookupsLetsTheStepBeApplied) {
  begin(3, /*is_exact=*/true);
  train(0);  // Lookups of the steps 1 to 3 would have to be answered before.
  EXPECT_EQ(save(1).at(0).blocks.at(0).num_keys, 2U);
  EXPECT_EQ(read(6), -2);
}

TEST_F(ServerCheckpointsTest, ALoadReplacesRowsOnceItIsTaken) {
  begin(0);
  train(0);
  auto const saved = save(1);
  client().begin_generation(2, {.num_workers = 1, .first_step = 1});
  EXPECT_EQ(read(5), -1);
  TestWorker later(servers_, 0, 2, 1);
  later.start(1, Ids{5, 7});
  static_cast<void>(later.rows(1));
  later.finish(1, std::vector<float>{1, 1}, 1);
  auto const evicted = decode_evicted(take(client().start_load(2, load_args(saved, 1))));
  EXPECT_EQ(evicted, std::vector<std::uint64_t>{0});
  EXPECT_EQ(read(5), -2) << "the rows are not in use yet";
  take(client().start_take_loaded(2));
  EXPECT_EQ(read(5), -1);
  EXPECT_EQ(read(7), 0);
  EXPECT_EQ(client().status().num_applied, 1U);
  auto const text = refusal_of([&] { client().finish(*client().start_void(2, {1, 0})); });
  EXPECT_NE(text.find("no generation has begun"), std::string::npos) << text;
  client().begin_generation(3, {.num_workers = 1, .first_step = 1});
}

TEST_F(ServerCheckpointsTest, BatchesThatComeAgainCountOnceAndAreNotLost) {
  begin(2);
  train(0);
  for (std::uint64_t const step : {1U, 2U}) {
    worker_.start(step, Ids{5});
    static_cast<void>(worker_.rows(step));
  }
  static_cast<void>(take(client().start_save(1, {.step = 1, .end = 3, .path = path()})));
  client().begin_generation(2, {.num_workers = 1, .staleness = 2, .first_step = 1});
  auto const lost = [&] { return client().status().lost.at(static_cast<std::size_t>(LossCause::kGeneration)); };
  EXPECT_EQ(lost(), 0U);
  TestWorker again(servers_, 0, 2, 1);
  again.start(1, Ids{5});
  static_cast<void>(again.rows(1));
  again.finish(1, std::vector<float>{1}, 1);
  EXPECT_EQ(client().status().lookups, 3U);
  client().begin_generation(3, {.num_workers = 1, .first_step = 2});
  EXPECT_EQ(lost(), 1U) << "the batch of step 2 did not come";
  EXPECT_EQ(client().status().lookups, client().status().parts + 1);
}

TEST_F(ServerCheckpointsTest, ErrorsNameTheFileAndChangeNothing) {
  begin(0);
  train(0);
  auto const nowhere = path("missing/rows.bin");
  auto const refusal =
      refusal_of([&] { client().finish(*client().start_save(1, {.step = 1, .end = 1, .path = nowhere})); });
  EXPECT_NE(refusal.find(nowhere), std::string::npos) << refusal;
  auto const saved = save(1);
  std::filesystem::resize_file(path(), 10);
  auto const altered = refusal_of([&] { take(client().start_load(1, load_args(saved, 1))); });
  EXPECT_NE(altered.find(path() + " is truncated"), std::string::npos) << altered;
  EXPECT_EQ(read(5), -1);
  auto const none = refusal_of([&] { take(client().start_take_loaded(1)); });
  EXPECT_NE(none.find("has loaded no checkpoint"), std::string::npos) << none;
}

TEST_F(ServerCheckpointsTest, ANewGenerationRefusesACheckpointThatWaits) {
  begin(0);
  auto const waiting = client().start_save(1, {.step = 1, .end = 1, .path = path()});
  client().begin_generation(2, {.num_workers = 1});
  auto const text = refusal_of([&] { client().finish(*waiting); });
  EXPECT_NE(text.find("generation 1 has ended"), std::string::npos) << text;
  EXPECT_FALSE(std::filesystem::exists(path()));
}

}  // namespace
}  // namespace headway::hybrid
