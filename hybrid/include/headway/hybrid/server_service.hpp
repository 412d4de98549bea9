// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/comm/group_options.hpp"
#include "headway/hybrid/parameter_server.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace headway::hybrid {

struct ServerServiceOptions {
  std::string address = "0.0.0.0:7000";                 ///< "HOST:PORT" of LinkListener.
  comm::GroupOptions link{};                            ///< With the name and secret of the job. `timeout` is not used.
  std::size_t max_body_bytes = std::size_t{256} << 20;  ///< Largest request.
  ParameterServerOptions server{};
};

/// Serves a ParameterServer over links, until it is destroyed. Has a thread that accepts, and one for each link.
class ServerService {
 public:
  /// @throws base::UsageError for a wrong option; base::SystemError if nobody can listen at the address
  explicit ServerService(ServerServiceOptions options);
  ~ServerService();
  ServerService(ServerService const&) = delete;
  ServerService& operator=(ServerService const&) = delete;

  [[nodiscard]] std::string const& address() const;
  [[nodiscard]] std::uint64_t incarnation() const;
  [[nodiscard]] ServerStatus status() const;
  [[nodiscard]] std::size_t num_links() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// A random number that is not 0.
[[nodiscard]] std::uint64_t draw_incarnation();

}  // namespace headway::hybrid
