// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace headway::base {

enum class MetricKind : std::uint8_t {
  kCounter,  ///< Never falls while the process lives.
  kGauge,
  kHistogram,
};

/// One value of a metric, or one histogram.
struct Metric {
  /// A bucket of a histogram.
  struct Bucket {
    double upper_bound = 0;              ///< Included. The last bucket has infinity.
    std::uint64_t cumulative_count = 0;  ///< Observations up to `upper_bound`.
  };

  std::vector<std::pair<std::string, std::string>> labels{};  ///< Name, value.
  double value = 0;                                           ///< For a histogram the sum of its observations.
  std::vector<Bucket> buckets{};                              ///< Histograms only.
};

/// Metrics of one name, which differ in their labels.
struct MetricFamily {
  std::string name, help;
  MetricKind kind = MetricKind::kGauge;
  std::vector<Metric> metrics{};

  /// Adds a metric without labels, or with one.
  Metric& add(double value) { return metrics.emplace_back(Metric{.value = value}); }
  Metric& add(std::string label, std::string label_value, double value) {
    return metrics.emplace_back(Metric{.labels = {{std::move(label), std::move(label_value)}}, .value = value});
  }
};

/// Adds observations of whole numbers from `first` on: counts[i] of them were first + i.
/// @param is_last_open the last count is that of all larger numbers, too
void add_histogram(MetricFamily& family, std::vector<std::uint64_t> const& counts, std::uint64_t first,
                   bool is_last_open);
/// Resident memory of this process, under the usual name.
[[nodiscard]] MetricFamily resident_memory();

/// Shows metrics to Prometheus, at http://ADDRESS/metrics, in its text format. A connection that is silent for
/// kConnectionTimeout is closed, a request has at most 16 KiB, and a few connections are served at a time.
class MetricsServer {
 public:
  /// Listens from now on.
  /// @param address HOST:PORT; port 0: the system chooses one
  /// @param collect called on threads of the server, for each request; what it uses must outlive the server
  /// @throws UsageError if this build has no prometheus-cpp; SystemError if the address cannot be used
  MetricsServer(std::string const& address, std::function<std::vector<MetricFamily>()> collect);
  ~MetricsServer();
  MetricsServer(MetricsServer const&) = delete;
  MetricsServer& operator=(MetricsServer const&) = delete;

  /// The port that was bound.
  [[nodiscard]] int port() const;
  /// Has this build prometheus-cpp?
  [[nodiscard]] static bool is_available();

 private:
  class Listener;
  std::unique_ptr<Listener> listener_;
};

}  // namespace headway::base
