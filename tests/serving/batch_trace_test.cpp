// SPDX-License-Identifier: Apache-2.0
#include "batch_trace.hpp"

#include "headway/base/status.hpp"
#include "temporary_directory.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <fstream>
#include <set>
#include <string>
#include <tuple>

namespace headway::serving {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

/// A batch of two requests, taken at `begin`, that took 10 ms.
BatchRecord batch_at(std::uint64_t number, Clock::time_point begin) {
  return {.number = number,
          .items = 7,
          .in_flight = 2,
          .accepted = {begin - 2ms, begin - 1ms},
          .taken = begin,
          .fetch_began = begin + 1ms,
          .fetched = begin + 4ms,
          .handed_over = begin + 5ms,
          .dense_began = begin + 6ms,
          .replied = begin + 10ms,
          .dense_ended = begin + 9ms,
          .arrivals = {{.rank = 1, .time = begin + 3ms}}};
}

json written(BatchTrace const& trace) {
  TemporaryDirectory const directory;
  auto const path = directory.path() / "trace.json";
  trace.write(path);
  return json::parse(std::ifstream(path)).at("traceEvents");
}

TEST(BatchTrace, the_last_batches_are_kept_within_limits_of_batches_and_requests) {
  for (auto const& [most_batches, most_requests, kept] :
       {std::tuple(3, 100, 3), std::tuple(100, 4, 2), std::tuple(100, 1, 1)}) {
    BatchTrace trace(0, static_cast<std::size_t>(most_batches), static_cast<std::size_t>(most_requests));
    for (std::uint64_t number = 0; number < 10; ++number) {
      trace.add(batch_at(number, Clock::now() + 10ms * static_cast<int>(number)));
    }
    std::set<std::string> names;
    for (auto const& event : written(trace)) {
      if (auto const name = event.at("name").get<std::string>(); name.starts_with("batch ")) names.insert(name);
    }
    EXPECT_EQ(names.size(), static_cast<std::size_t>(kept));
    EXPECT_TRUE(names.contains("batch 9"));
  }
}

TEST(BatchTrace, stages_follow_each_other_and_batches_in_flight_have_rows_of_their_own) {
  BatchTrace trace(3);
  auto const begin = Clock::now();
  trace.add(batch_at(0, begin));
  trace.add(batch_at(1, begin + 4ms));   // Beside the first.
  trace.add(batch_at(2, begin + 10ms));  // After the first.
  std::vector<int> rows;
  std::set<std::string> requests;
  double end_of_delay = 0;
  for (auto const& event : written(trace)) {
    EXPECT_EQ(event.at("pid"), 3);
    auto const name = event.at("name").get<std::string>();
    if (name.starts_with("batch ")) rows.push_back(event.at("tid"));
    if (name == "request" && event.at("ph") == "b") requests.insert(event.at("id"));
    if (event.value("tid", 0) != 1) continue;
    if (name == "batch 0") {
      EXPECT_DOUBLE_EQ(event.at("dur"), 10'000);
      EXPECT_EQ(event.at("args"), json({{"items", 7}, {"requests", 2}, {"in_flight", 2}}));
    }
    if (name == "delay" && end_of_delay == 0) {
      EXPECT_DOUBLE_EQ(event.at("dur"), 1000);
      end_of_delay = event.at("ts").get<double>() + 1000;
      EXPECT_NEAR(end_of_delay / 1e6, static_cast<double>(std::time(nullptr)), 5);
    } else if (name == "rows of rank 1" && event.at("ts").get<double>() < end_of_delay + 5000) {
      EXPECT_NEAR(event.at("ts").get<double>(), end_of_delay + 2000, 1);
    }
  }
  EXPECT_EQ(rows, (std::vector{1, 2, 1}));
  EXPECT_EQ(requests, (std::set<std::string>{"3.0.0", "3.0.1", "3.1.0", "3.1.1", "3.2.0", "3.2.1"}));
}

TEST(BatchTrace, only_the_last_batches_are_kept_and_a_bad_path_is_named) {
  BatchTrace trace(0, 2);
  for (std::uint64_t i = 0; i < 5; ++i) trace.add(batch_at(i, Clock::now()));
  std::set<std::string> names;
  for (auto const& event : written(trace)) {
    if (event.at("name").get<std::string>().starts_with("batch ")) names.insert(event.at("name"));
  }
  EXPECT_EQ(names, (std::set<std::string>{"batch 3", "batch 4"}));
  try {
    trace.write("/nowhere/trace.json");
    ADD_FAILURE() << "the path was taken";
  } catch (base::SystemError const& error) {
    EXPECT_NE(std::string(error.what()).find("/nowhere/trace.json"), std::string::npos) << error.what();
  }
  EXPECT_EQ(path_of_rank("out/trace.json", 2), "out/trace.rank2.json");
}

}  // namespace
}  // namespace headway::serving
