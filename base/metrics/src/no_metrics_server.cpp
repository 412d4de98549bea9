// SPDX-License-Identifier: Apache-2.0

// MetricsServer of a build without prometheus-cpp.

#include "headway/base/metrics_server.hpp"
#include "headway/base/status.hpp"

namespace headway::base {

class MetricsServer::Listener {};

MetricsServer::MetricsServer(std::string const& /*address*/, std::function<std::vector<MetricFamily>()> /*collect*/) {
  throw UsageError("this build has no metrics: install prometheus-cpp-dev and build again");
}
MetricsServer::~MetricsServer() = default;
int MetricsServer::port() const { return 0; }
bool MetricsServer::is_available() { return false; }

}  // namespace headway::base
