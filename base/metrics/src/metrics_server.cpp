// SPDX-License-Identifier: Apache-2.0

#include "headway/base/metrics_server.hpp"

#include "headway/base/log.hpp"
#include "headway/base/status.hpp"

#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <prometheus/metric_family.h>

#include <cerrno>
#include <exception>
#include <utility>

namespace headway::base {

namespace {

prometheus::ClientMetric converted(Metric const& from, MetricKind kind) {
  prometheus::ClientMetric metric;
  for (auto const& [name, value] : from.labels) metric.label.push_back({name, value});
  switch (kind) {
    case MetricKind::kCounter:
      metric.counter.value = from.value;
      break;
    case MetricKind::kGauge:
      metric.gauge.value = from.value;
      break;
    case MetricKind::kHistogram:
      metric.histogram.sample_sum = from.value;
      if (!from.buckets.empty()) metric.histogram.sample_count = from.buckets.back().cumulative_count;
      for (auto const& each : from.buckets) {
        metric.histogram.bucket.push_back({.cumulative_count = each.cumulative_count, .upper_bound = each.upper_bound});
      }
      break;
  }
  return metric;
}

prometheus::MetricFamily converted(MetricFamily const& from) {
  using prometheus::MetricType;
  constexpr MetricType kTypes[] = {MetricType::Counter, MetricType::Gauge, MetricType::Histogram};
  prometheus::MetricFamily family{from.name, from.help, kTypes[static_cast<std::size_t>(from.kind)], {}};
  for (auto const& each : from.metrics) family.metric.push_back(converted(each, from.kind));
  return family;
}

class Page final : public prometheus::Collectable {
 public:
  explicit Page(std::function<std::vector<MetricFamily>()> collect) : collect_(std::move(collect)) {}

  [[nodiscard]] std::vector<prometheus::MetricFamily> Collect() const override {
    std::vector<prometheus::MetricFamily> families;
    try {
      for (auto const& each : collect_()) families.push_back(converted(each));
    } catch (std::exception const& error) {  // It must not end the process.
      log(LogLevel::kWarning, "metrics", -1, std::string("metrics could not be collected: ") + error.what());
    }
    return families;
  }

 private:
  std::function<std::vector<MetricFamily>()> collect_;
};

}  // namespace

class MetricsServer::Listener {
 public:
  // Options of civetweb, which serves the pages. A request that is too slow or too long ends its connection.
  Listener(std::string const& address, std::function<std::vector<MetricFamily>()> collect)
      : exposer_({"listening_ports", address, "num_threads", "4", "request_timeout_ms", "5000", "max_request_size",
                  "16384", "enable_keep_alive", "no"}),
        page_(std::make_shared<Page>(std::move(collect))) {
    exposer_.RegisterCollectable(page_);
  }

  [[nodiscard]] int port() const {
    auto const ports = exposer_.GetListeningPorts();
    return ports.empty() ? 0 : ports.front();
  }

 private:
  prometheus::Exposer exposer_;
  std::shared_ptr<Page> page_;
};

MetricsServer::MetricsServer(std::string const& address, std::function<std::vector<MetricFamily>()> collect) {
  try {
    listener_ = std::make_unique<Listener>(address, std::move(collect));
  } catch (std::exception const& error) {
    throw SystemError("listening for metrics", EADDRINUSE, "on " + address + ": " + error.what());
  }
}
MetricsServer::~MetricsServer() = default;
int MetricsServer::port() const { return listener_->port(); }
bool MetricsServer::is_available() { return true; }

}  // namespace headway::base
