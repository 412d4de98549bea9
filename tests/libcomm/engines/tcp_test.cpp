#include "connect_in_threads.hpp"
#include "endpoint_conformance.hpp"
#include "engines/tcp/endpoint.hpp"

namespace headway::comm {
namespace {

/// tcp with its default options.
struct Tcp {
  static constexpr char const* kName = "tcp";
  static std::unique_ptr<Endpoint> connect_rank(int rank, int size, std::size_t landing_bytes, Store& store) {
    return make_tcp_endpoint(rank, size, connect_test_lifelines(rank, size, landing_bytes, store, Engine::kTcp),
                             landing_bytes);
  }
  static std::vector<std::unique_ptr<Endpoint>> connect(int size, std::size_t landing_bytes) {
    return connect_in_threads<Tcp>(size, landing_bytes);
  }
};

using TcpEngines = TestedEngines<Tcp>;
HEADWAY_TEST_ENDPOINTS(Engine, TcpEngines);
HEADWAY_TEST_PROCESS_ENDPOINTS(Engine, TcpEngines);

}  // namespace
}  // namespace headway::comm
