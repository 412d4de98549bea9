// SPDX-License-Identifier: Apache-2.0

// Statistics of a parameter server: shares of the commonest ids, waits by worker, losses by cause, bytes.

#include "server/server_meter.hpp"

#include "headway/comm/link.hpp"
#include "headway/hybrid/server_service.hpp"
#include "server_fixture.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace headway::hybrid {
namespace {

using std::chrono::milliseconds;

/// A lookup of one merged table.
struct Lookup {
  std::vector<std::uint64_t> ids;
  std::vector<std::uint32_t> tables, counts;

  [[nodiscard]] DecodedLookup of_samples(std::uint64_t num_samples) const {
    return {.batch = {}, .num_samples = num_samples, .tables = {{.ids = ids, .tables = tables, .counts = counts}}};
  }
};

TEST(ServerMeter, TheShareOfTheCommonestIdIsAnAverageOverBatches) {
  ServerMeter meter;
  auto merged = one_table(1);
  merged[0].tables = {3, 4};
  merged[0].names = {"user", "item"};
  meter.set_tables(merged);
  meter.add(meter.count(Lookup{.ids = {7, 9, 7}, .tables = {3, 3, 4}, .counts = {3, 1, 9}}.of_samples(4)));
  meter.add(meter.count(Lookup{.ids = {7, 9}, .tables = {3, 3}, .counts = {1, 2}}.of_samples(4)));
  meter.add(meter.count(Lookup{.ids = {7}, .tables = {3}, .counts = {5}}.of_samples(0)));  // No samples: not counted.
  ServerStatus status;
  status.tables.resize(1);
  meter.report(status);
  ASSERT_EQ(status.tables[0].shares.size(), 2U);
  auto const& [user, item] = std::pair(status.tables[0].shares[0], status.tables[0].shares[1]);
  EXPECT_EQ(user.table, "user");
  EXPECT_EQ(user.top_lookups, 3U + 2U);
  EXPECT_EQ(item.table, "item");
  EXPECT_EQ(item.top_lookups, 4U + 0U) << "an id that repeats in a sample counts at most once for each sample";
  EXPECT_EQ(item.num_samples, 8U);
  EXPECT_EQ(status.samples, 8U);
}

TEST(ServerMeter, AHeldLookupWaitsForTheWorkerThatCameLast) {
  ServerMeter meter;
  meter.begin_generation(2);
  auto const start = ServerMeter::Clock::now();
  meter.begin_hold({1, 0}, start);
  meter.begin_hold({1, 1}, start + milliseconds(1));
  meter.end_hold({1, 0}, 1, start + milliseconds(5));
  meter.end_hold({1, 1}, std::nullopt, start + milliseconds(9));  // Refused.
  meter.end_hold({2, 0}, 1, start + milliseconds(9));             // It was not held.
  ServerStatus status;
  meter.report(status);
  ASSERT_EQ(status.waits.size(), 2U);
  EXPECT_EQ(status.waits[0].num_lookups, 0U);
  EXPECT_EQ(status.waits[1].num_lookups, 1U);
  EXPECT_EQ(status.waits[1].nanoseconds, 5'000'000U);
}

TEST(ServerMeter, AStatusArrivesAsItWasSent) {
  ServerStatus status;
  status.samples = 5;
  status.lost = {1, 2, 3};
  status.waits = {{.num_lookups = 7, .nanoseconds = 8}};
  status.tables.push_back({.rows = 9, .dropped_gradients = 10, .shares = {{"user", 11, 12}, {"", 13, 14}}});
  auto const same = decode_status(encode_status(status));
  EXPECT_EQ(same.samples, 5U);
  EXPECT_EQ(same.lost, status.lost);
  ASSERT_EQ(same.waits.size(), 1U);
  EXPECT_EQ(same.waits[0].nanoseconds, 8U);
  ASSERT_EQ(same.tables.size(), 1U);
  EXPECT_EQ(same.tables[0].rows, 9U);
  EXPECT_EQ(same.tables[0].dropped_gradients, 10U);
  ASSERT_EQ(same.tables[0].shares.size(), 2U);
  EXPECT_EQ(same.tables[0].shares[0].table, "user");
  EXPECT_EQ(same.tables[0].shares[1].top_lookups, 14U);
}

/// Value of the metric with these label values; -1: there is none.
double value_of(std::vector<base::MetricFamily> const& families, std::string_view name,
                std::vector<std::string> const& label_values = {}) {
  for (auto const& family : families) {
    if (family.name != name) continue;
    for (auto const& metric : family.metrics) {
      auto const has_values =
          std::ranges::equal(metric.labels, label_values, {}, [](auto const& label) { return label.second; });
      if (has_values) return metric.value;
    }
  }
  return -1;
}

TEST(ServerMeter, AServerCountsLossesWaitsAndBytes) {
  auto link = request_link_options({});
  link.name = "job";
  link.secret = "a secret of the job";
  ServerService const service({.service = {.address = "127.0.0.1:0", .link = link}});
  ServerClient client(comm::dial(service.address(), link), kLong);
  auto tables = one_table(2);
  tables[0].names = {"user"};
  client.configure(tables);
  client.begin_generation(1, {.num_workers = 2});
  std::vector<std::uint64_t> const ids{1, 2};
  std::vector<std::uint32_t> const of_table(2, kTable), counts{3, 1};
  KeyList const keys{.ids = ids, .tables = of_table, .counts = counts};
  auto const lookup = [&](BatchId batch) { return client.start_lookup(1, batch, {&keys, 1}, 4); };
  auto const finish = [&](BatchId batch, float gradient) {
    std::vector<float> const gradients(4, gradient);
    PartValues const part{.rate = 1, .gradients = gradients};
    client.finish(*client.start_part(1, batch, {&part, 1}));
  };
  ASSERT_TRUE(client.wait_rows(*lookup({0, 0}), kLong));
  finish({0, 0}, 1);
  auto const held = lookup({1, 0});                         // Waits for worker 1.
  EXPECT_FALSE(client.wait_rows(*held, milliseconds(20)));  // The server may hold it for less: it has to arrive.
  client.finish(*client.start_void(1, {0, 1}, LossCause::kOverflow));
  ASSERT_TRUE(client.wait_rows(*held, kLong));
  finish({1, 0}, std::numeric_limits<float>::quiet_NaN());
  ASSERT_TRUE(client.wait_rows(*lookup({1, 1}), kLong));
  client.begin_generation(2, {.num_workers = 1, .first_step = 1});

  auto const metrics = service.metrics();
  auto const value = [&](std::string const& name, std::vector<std::string> const& labels = {}) {
    return value_of(metrics, "headway_hybrid_" + name, labels);
  };
  EXPECT_EQ(value("parts_total"), 1);
  EXPECT_EQ(value("lost_parts_total", {"overflow"}), 1);
  EXPECT_EQ(value("lost_parts_total", {"not_finite"}), 1);
  EXPECT_EQ(value("lost_parts_total", {"generation"}), 1);
  EXPECT_EQ(value("lost_parts_total", {"skipped"}), 0);
  EXPECT_EQ(value("held_lookups_total", {"1"}), 1);
  EXPECT_EQ(value("held_lookups_total", {"0"}), 0);
  EXPECT_GT(value("held_seconds_total", {"1"}), 0);
  EXPECT_EQ(value("samples_total"), 12);
  EXPECT_EQ(value("alpha", {"user"}), 0.75);
  EXPECT_EQ(value("rows", {"user"}), 2);
  EXPECT_EQ(value("requests_total", {"lookup"}), 3);
  EXPECT_EQ(value("bytes_total", {"lookup", "received"}), 3 * 1024);
  EXPECT_EQ(value("bytes_total", {"part", "sent"}), 2 * 1024);
  EXPECT_EQ(value("links"), 1);
  EXPECT_GT(value_of(metrics, "process_resident_memory_bytes"), 1e6);
}

}  // namespace
}  // namespace headway::hybrid
