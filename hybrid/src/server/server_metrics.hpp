// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/base/metrics_server.hpp"
#include "headway/hybrid/requests.hpp"
#include "headway/hybrid/server_messages.hpp"

#include <cstddef>
#include <vector>

namespace headway::hybrid {

/// State of a parameter server for Prometheus.
[[nodiscard]] std::vector<base::MetricFamily> metrics_of(ServerStatus const& status, RequestTraffic const& traffic,
                                                         std::size_t num_links);

}  // namespace headway::hybrid
