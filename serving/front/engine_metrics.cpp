// SPDX-License-Identifier: Apache-2.0
#include "engine_metrics.hpp"

#include <array>
#include <chrono>
#include <limits>
#include <string>

namespace headway::serving {

namespace {

using base::Metric, base::MetricFamily, base::MetricKind;
using std::chrono::microseconds, std::chrono::nanoseconds;

constexpr std::array<char const*, kNumOutcomes> kOutcomes{"answered",          "invalid",     "queue_full",
                                                          "deadline_exceeded", "unavailable", "failed"};
constexpr std::array<char const*, kNumStages> kStages{"queue", "delay",  "fetch", "dense_queue",
                                                      "dense", "engine", "total"};
constexpr std::array<microseconds, 15> kLimits{microseconds(50),      microseconds(100),       microseconds(200),
                                               microseconds(500),     microseconds(1'000),     microseconds(2'000),
                                               microseconds(5'000),   microseconds(10'000),    microseconds(20'000),
                                               microseconds(50'000),  microseconds(100'000),   microseconds(200'000),
                                               microseconds(500'000), microseconds(1'000'000), microseconds(5'000'000)};

double seconds(nanoseconds time) { return std::chrono::duration<double>(time).count(); }

void add_latencies(MetricFamily& family, std::string label, std::string label_value, LatencyHistogram const& from) {
  auto& metric = family.add(std::move(label), std::move(label_value), seconds(from.sum()));
  for (auto const limit : kLimits) {
    metric.buckets.push_back({.upper_bound = seconds(limit), .cumulative_count = from.count_up_to(limit)});
  }
  metric.buckets.push_back({.upper_bound = std::numeric_limits<double>::infinity(), .cumulative_count = from.count()});
}

/// The families of a page.
class Page {
 public:
  MetricFamily& add(std::string const& name, char const* help, MetricKind kind) {
    return families_.emplace_back(MetricFamily{.name = "headway_serving_" + name, .help = help, .kind = kind});
  }
  void add_number(std::string const& name, char const* help, MetricKind kind, std::uint64_t value) {
    add(name, help, kind).add(static_cast<double>(value));
  }
  [[nodiscard]] std::vector<MetricFamily> take() { return std::move(families_); }

 private:
  std::vector<MetricFamily> families_;
};

}  // namespace

std::vector<MetricFamily> metrics_of(Engine const& engine) {
  auto const statistics = engine.statistics();
  Page page;
  auto& requests = page.add("requests_total", "Requests by how they ended.", MetricKind::kCounter);
  for (std::size_t i = 0; i < kNumOutcomes; ++i) {
    requests.add("outcome", kOutcomes[i], static_cast<double>(statistics.requests[i]));
  }
  auto& stages = page.add("stage_seconds", "Time of answered requests by stage.", MetricKind::kHistogram);
  for (std::size_t i = 0; i < kNumStages; ++i) add_latencies(stages, "stage", kStages[i], statistics.stages[i]);
  auto& waits = page.add("peer_wait_seconds", "Time from the keys of a batch to the rows of another rank.",
                         MetricKind::kHistogram);
  for (auto const& [rank, histogram] : statistics.peer_waits) {
    add_latencies(waits, "peer", std::to_string(rank), histogram);
  }
  page.add_number("batches_total", "Batches that were answered.", MetricKind::kCounter, statistics.batches);
  page.add_number("batch_rows_total", "Rows of these batches.", MetricKind::kCounter, statistics.rows);
  auto& in_flight = page.add("batches_in_flight", "Batches in flight when one began, with it.", MetricKind::kHistogram);
  base::add_histogram(in_flight, {statistics.in_flight.begin(), statistics.in_flight.end()}, 1, true);
  page.add_number("refused_versions_total", "New versions that were refused.", MetricKind::kCounter,
                  statistics.refused_versions);
  page.add_number("queued_rows", "Rows that wait for a batch.", MetricKind::kGauge, statistics.queued_rows);
  page.add_number("ready", "1 if requests are taken.", MetricKind::kGauge, engine.is_ready() ? 1 : 0);
  page.add("version_info", "Version of the model.", MetricKind::kGauge)
      .add("version", engine.model()->manifest().version, 1);
  return page.take();
}

}  // namespace headway::serving
