// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/base/metrics_server.hpp"
#include "headway/hybrid/parameter_server.hpp"
#include "headway/hybrid/request_service.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace headway::hybrid {

struct ServerServiceOptions {
  RequestServiceOptions service{};
  ParameterServerOptions server{};
};

/// Serves a ParameterServer over links, until it is destroyed.
class ServerService {
 public:
  /// @throws base::UsageError for a wrong option; base::SystemError if nobody can listen at the address
  explicit ServerService(ServerServiceOptions options);

  [[nodiscard]] std::string const& address() const { return service_.address(); }
  [[nodiscard]] std::uint64_t incarnation() const { return service_.incarnation(); }
  [[nodiscard]] ServerStatus status() const { return server_.status(); }
  [[nodiscard]] std::size_t num_links() const { return service_.num_links(); }
  /// Counters for Prometheus. All names but those of the process begin with headway_hybrid_.
  [[nodiscard]] std::vector<base::MetricFamily> metrics() const;

 private:
  ParameterServer server_;
  RequestService service_;  ///< Ends first.
};

}  // namespace headway::hybrid
