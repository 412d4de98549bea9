// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "credentials.hpp"
#include "headway/serving/engine.hpp"

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

namespace headway::serving {

struct FrontOptions {
  std::string address = "127.0.0.1:8001";  ///< Port 0: a free one.
  std::string model_name = "model";
  std::chrono::milliseconds default_timeout{10'000};  ///< Time limit of requests without a deadline.
  std::size_t max_message_bytes = std::size_t{64} << 20;
  TlsFiles tls{};
};

/// Speaks the Open Inference Protocol over gRPC, and grpc.health.v1, for one engine.
///
/// A request is a call of ModelInfer(): infer_request.hpp. Its deadline is that of the call, or its parameter `timeout`
/// (microseconds) if that is earlier. Errors are gRPC's: INVALID_ARGUMENT, RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED,
/// UNAVAILABLE, INTERNAL, and NOT_FOUND for another model or version.
class FrontServer {
 public:
  /// Listens from now on.
  /// @param engine must outlive the server
  /// @throws base::SystemError if the address cannot be used
  FrontServer(Engine& engine, FrontOptions const& options);
  /// Ends all calls.
  ~FrontServer();
  FrontServer(FrontServer const&) = delete;
  FrontServer& operator=(FrontServer const&) = delete;

  [[nodiscard]] int port() const;
  /// ServerReady and the health service say whether the engine takes requests. The latter has to be told of a change.
  void update_health();

 private:
  class Service;
  std::unique_ptr<Service> service_;
};

}  // namespace headway::serving
