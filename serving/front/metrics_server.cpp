// SPDX-License-Identifier: Apache-2.0
#include "metrics_server.hpp"

#include "headway/base/status.hpp"

#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <prometheus/metric_family.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <exception>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace headway::serving {

namespace {

using prometheus::ClientMetric, prometheus::MetricFamily, prometheus::MetricType;
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

ClientMetric::Histogram histogram_of(LatencyHistogram const& from) {
  ClientMetric::Histogram histogram;
  histogram.sample_count = from.count();
  histogram.sample_sum = seconds(from.sum());
  for (auto const limit : kLimits) {
    histogram.bucket.push_back({.cumulative_count = from.count_up_to(limit), .upper_bound = seconds(limit)});
  }
  histogram.bucket.push_back(
      {.cumulative_count = from.count(), .upper_bound = std::numeric_limits<double>::infinity()});
  return histogram;
}

/// Numbers from 1 on; the last stands for all above.
ClientMetric::Histogram histogram_of(std::span<std::uint64_t const> counts) {
  ClientMetric::Histogram histogram;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    auto const number = static_cast<double>(i + 1);
    histogram.sample_count += counts[i];
    histogram.sample_sum += number * static_cast<double>(counts[i]);
    bool const is_last = i + 1 == counts.size();
    histogram.bucket.push_back({.cumulative_count = histogram.sample_count,
                                .upper_bound = is_last ? std::numeric_limits<double>::infinity() : number});
  }
  return histogram;
}

class EngineMetrics final : public prometheus::Collectable {
 public:
  explicit EngineMetrics(Engine const& engine) : engine_(engine) {}

  [[nodiscard]] std::vector<MetricFamily> Collect() const override {
    auto const statistics = engine_.statistics();
    std::vector<MetricFamily> families;
    auto& requests = add(families, "requests_total", "Requests by how they ended.", MetricType::Counter);
    for (std::size_t i = 0; i < kNumOutcomes; ++i) {
      auto& metric = add(requests, "outcome", kOutcomes[i]);
      metric.counter.value = static_cast<double>(statistics.requests[i]);
    }
    auto& stages = add(families, "stage_seconds", "Time of answered requests by stage.", MetricType::Histogram);
    for (std::size_t i = 0; i < kNumStages; ++i) {
      add(stages, "stage", kStages[i]).histogram = histogram_of(statistics.stages[i]);
    }
    auto& waits = add(families, "peer_wait_seconds", "Time from the keys of a batch to the rows of another rank.",
                      MetricType::Histogram);
    for (auto const& [rank, histogram] : statistics.peer_waits) {
      add(waits, "peer", std::to_string(rank)).histogram = histogram_of(histogram);
    }
    add_number(families, "batches_total", "Batches that were answered.", MetricType::Counter, statistics.batches);
    add_number(families, "batch_rows_total", "Rows of these batches.", MetricType::Counter, statistics.rows);
    auto& in_flight =
        add(families, "batches_in_flight", "Batches in flight when one began, with it.", MetricType::Histogram);
    in_flight.metric.emplace_back().histogram = histogram_of(statistics.in_flight);
    add_number(families, "refused_versions_total", "New versions that were refused.", MetricType::Counter,
               statistics.refused_versions);
    add_number(families, "queued_rows", "Rows that wait for a batch.", MetricType::Gauge, statistics.queued_rows);
    add_number(families, "ready", "1 if requests are taken.", MetricType::Gauge, engine_.is_ready() ? 1 : 0);
    auto& version = add(families, "version_info", "Version of the model.", MetricType::Gauge);
    add(version, "version", engine_.model()->manifest().version).gauge.value = 1;
    return families;
  }

 private:
  static MetricFamily& add(std::vector<MetricFamily>& families, std::string const& name, char const* help,
                           MetricType type) {
    return families.emplace_back(MetricFamily{"headway_serving_" + name, help, type, {}});
  }
  static ClientMetric& add(MetricFamily& family, std::string const& label, std::string const& value) {
    auto& metric = family.metric.emplace_back();
    metric.label.push_back({label, value});
    return metric;
  }
  static void add_number(std::vector<MetricFamily>& families, std::string const& name, char const* help,
                         MetricType type, std::uint64_t value) {
    auto& metric = add(families, name, help, type).metric.emplace_back();
    (type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = static_cast<double>(value);
  }

  Engine const& engine_;
};

}  // namespace

class MetricsServer::Listener {
 public:
  Listener(std::string const& address, Engine const& engine)
      : exposer_(address), metrics_(std::make_shared<EngineMetrics>(engine)) {
    exposer_.RegisterCollectable(metrics_);
  }

 private:
  prometheus::Exposer exposer_;
  std::shared_ptr<EngineMetrics> metrics_;
};

MetricsServer::MetricsServer(std::string const& address, Engine const& engine) {
  try {
    listener_ = std::make_unique<Listener>(address, engine);
  } catch (std::exception const& error) {
    throw base::SystemError("listening for metrics", EADDRINUSE, "on " + address + ": " + error.what());
  }
}
MetricsServer::~MetricsServer() = default;

}  // namespace headway::serving
