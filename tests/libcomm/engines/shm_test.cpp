#include "connect_in_threads.hpp"
#include "endpoint_conformance.hpp"
#include "engines/shm/endpoint.hpp"

namespace headway::comm {
namespace {

/// shm with its default options.
struct Shm {
  static constexpr char const* kName = "shm";
  static std::unique_ptr<Endpoint> connect_rank(int rank, int size, std::size_t landing_bytes, Store& store) {
    return make_shm_endpoint(rank, size, connect_test_lifelines(rank, size, landing_bytes, store),
                             {.landing_bytes = landing_bytes});
  }
  static std::vector<std::unique_ptr<Endpoint>> connect(int size, std::size_t landing_bytes) {
    return connect_in_threads<Shm>(size, landing_bytes);
  }
};

using ShmEngines = TestedEngines<Shm>;
HEADWAY_TEST_ENDPOINTS(Engine, ShmEngines);
HEADWAY_TEST_PROCESS_ENDPOINTS(Engine, ShmEngines);

}  // namespace
}  // namespace headway::comm
