// SPDX-License-Identifier: Apache-2.0

#include "headway/hybrid/server_service.hpp"

#include "server/server_metrics.hpp"

#include <algorithm>
#include <utility>

namespace headway::hybrid {

namespace {

/// Gradients of a batch are about as large as its rows, and have to fit a request.
ParameterServerOptions with_rows_limit(ParameterServerOptions options, std::size_t max_body_bytes) {
  constexpr std::size_t kHeader = 64 << 10;
  options.max_rows_bytes = std::min(options.max_rows_bytes, max_body_bytes - std::min(kHeader, max_body_bytes / 2));
  return options;
}

}  // namespace

ServerService::ServerService(ServerServiceOptions options)
    : server_(with_rows_limit(std::move(options.server), options.service.max_body_bytes)),
      service_(std::move(options.service), [this](Request& request) { server_.handle(request); }) {}

std::vector<base::MetricFamily> ServerService::metrics() const {
  return metrics_of(status(), service_.traffic(), num_links());
}

}  // namespace headway::hybrid
