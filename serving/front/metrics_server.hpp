// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/serving/engine.hpp"

#include <memory>
#include <string>

namespace headway::serving {

/// Shows the counters of an engine to Prometheus, at http://ADDRESS/metrics.
class MetricsServer {
 public:
  /// Listens from now on.
  /// @param address HOST:PORT
  /// @param engine must outlive the server
  /// @throws base::UsageError if this build has no prometheus-cpp; base::SystemError if the address cannot be used
  MetricsServer(std::string const& address, Engine const& engine);
  ~MetricsServer();
  MetricsServer(MetricsServer const&) = delete;
  MetricsServer& operator=(MetricsServer const&) = delete;

 private:
  class Listener;
  std::unique_ptr<Listener> listener_;
};

}  // namespace headway::serving
