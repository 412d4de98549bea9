// SPDX-License-Identifier: Apache-2.0

// MetricsServer of a build without prometheus-cpp.

#include "headway/base/status.hpp"
#include "metrics_server.hpp"

namespace headway::serving {

class MetricsServer::Listener {};

MetricsServer::MetricsServer(std::string const& /*address*/, Engine const& /*engine*/) {
  throw base::UsageError("this build has no metrics: install prometheus-cpp-dev and build again");
}
MetricsServer::~MetricsServer() = default;

}  // namespace headway::serving
