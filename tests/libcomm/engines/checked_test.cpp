#include "connect_in_threads.hpp"
#include "endpoint_conformance.hpp"
#include "engines/checked/endpoint.hpp"
#include "engines/inproc/endpoint.hpp"
#include "engines/shm/endpoint.hpp"

namespace headway::comm {
namespace {

/// Wraps every endpoint in a CheckedEndpoint. Seed 0 means no faults.
std::vector<std::unique_ptr<Endpoint>> wrap(std::vector<std::unique_ptr<Endpoint>> engines, std::uint64_t fault_seed) {
  for (auto& engine : engines) engine = std::make_unique<CheckedEndpoint>(std::move(engine), fault_seed);
  return engines;
}

/// inproc under the checker, without faults.
struct CheckedInproc {
  static constexpr char const* kName = "checked_inproc";
  static std::vector<std::unique_ptr<Endpoint>> connect(int size, std::size_t landing_bytes) {
    return wrap(make_inproc_endpoints(size, landing_bytes, {.can_get = true, .can_put_exposed = true}), 0);
  }
};

/// inproc under the checker, with faults of a fixed seed.
struct FaultyInproc {
  static constexpr char const* kName = "faulty_inproc";
  static std::vector<std::unique_ptr<Endpoint>> connect(int size, std::size_t landing_bytes) {
    return wrap(make_inproc_endpoints(size, landing_bytes, {.can_get = true, .can_put_exposed = true}), 20240607);
  }
};

/// shm under the checker, with faults of a fixed seed.
struct FaultyShm {
  static constexpr char const* kName = "faulty_shm";
  static std::unique_ptr<Endpoint> connect_rank(int rank, int size, std::size_t landing_bytes, Store& store) {
    auto lifelines = connect_test_lifelines(rank, size, landing_bytes, store);
    return std::make_unique<CheckedEndpoint>(
        make_shm_endpoint(rank, size, std::move(lifelines), {.landing_bytes = landing_bytes}), 7);
  }
  static std::vector<std::unique_ptr<Endpoint>> connect(int size, std::size_t landing_bytes) {
    return connect_in_threads<FaultyShm>(size, landing_bytes);
  }
};

using CheckedEngines = TestedEngines<CheckedInproc, FaultyInproc, FaultyShm>;
HEADWAY_TEST_ENDPOINTS(Engine, CheckedEngines);
using CheckedProcessEngines = TestedEngines<FaultyShm>;
HEADWAY_TEST_PROCESS_ENDPOINTS(Engine, CheckedProcessEngines);

}  // namespace
}  // namespace headway::comm
