// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/base/metrics_server.hpp"
#include "headway/serving/engine.hpp"

#include <vector>

namespace headway::serving {

/// Counters of an engine for Prometheus. All names begin with headway_serving_.
[[nodiscard]] std::vector<base::MetricFamily> metrics_of(Engine const& engine);

}  // namespace headway::serving
