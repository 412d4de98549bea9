// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/comm/group_options.hpp"
#include "headway/hybrid/requests.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace headway::hybrid {

struct RequestServiceOptions {
  std::string address = "0.0.0.0:7000";                 ///< "HOST:PORT" of LinkListener.
  comm::GroupOptions link{};                            ///< With the name and secret of the job. `timeout` is not used.
  std::size_t max_body_bytes = std::size_t{256} << 20;  ///< Largest request.
};

/// Accepts links, and answers their requests by one handler, until it is destroyed. Has a thread that accepts, and one
/// for each link.
class RequestService {
 public:
  /// @param handler called on the threads of all links; it must outlive this object
  /// @throws base::UsageError for a wrong option; base::SystemError if nobody can listen at the address
  RequestService(RequestServiceOptions options, Responder::Handler handler);
  ~RequestService();
  RequestService(RequestService const&) = delete;
  RequestService& operator=(RequestService const&) = delete;

  [[nodiscard]] std::string const& address() const;
  /// Random number of this life, not 0.
  [[nodiscard]] std::uint64_t incarnation() const;
  /// Links that have not ended.
  [[nodiscard]] std::size_t num_links() const;

  /// Bytes of all links since this object was made.
  [[nodiscard]] RequestTraffic const& traffic() const;

  static constexpr std::size_t kMostLinks = 1024;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace headway::hybrid
