// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/base/metrics_server.hpp"
#include "headway/hybrid/compression.hpp"
#include "headway/hybrid/requests.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace headway::hybrid {

/// Metric families of a role. Names begin with headway_hybrid_.
class MetricPage {
 public:
  base::MetricFamily& counter(std::string_view name, char const* help) {
    return add(name, help, base::MetricKind::kCounter);
  }
  base::MetricFamily& gauge(std::string_view name, char const* help) {
    return add(name, help, base::MetricKind::kGauge);
  }
  base::MetricFamily& histogram(std::string_view name, char const* help) {
    return add(name, help, base::MetricKind::kHistogram);
  }
  void add_counter(std::string_view name, char const* help, std::uint64_t value) {
    counter(name, help).add(static_cast<double>(value));
  }
  void add_gauge(std::string_view name, char const* help, std::uint64_t value) {
    gauge(name, help).add(static_cast<double>(value));
  }
  /// Bytes of requests and answers, with labels `request` and `direction`.
  /// @param kinds kind and name of each request
  void add_traffic(RequestTraffic const& traffic, std::span<std::pair<std::uint32_t, std::string_view> const> kinds);
  /// Bytes of ids and values, with labels `content` and `form` (`sent`, or `plain` for those without compression).
  void add_messages(MessageBytes const& messages);
  /// Losses by cause. @param counts (kNumLossCauses), or empty
  void add_losses(std::string_view name, char const* help, std::span<std::uint64_t const> counts);
  /// Adds the memory of the process. @returns all
  [[nodiscard]] std::vector<base::MetricFamily> take();

 private:
  base::MetricFamily& add(std::string_view name, char const* help, base::MetricKind kind);

  std::vector<base::MetricFamily> families_;
};

[[nodiscard]] inline double seconds_of(std::uint64_t nanoseconds) { return static_cast<double>(nanoseconds) * 1e-9; }

}  // namespace headway::hybrid
