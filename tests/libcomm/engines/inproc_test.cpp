#include "endpoint_conformance.hpp"
#include "engines/inproc/endpoint.hpp"
#include "headway/comm/status.hpp"
#include "headway/comm/store.hpp"

#include <chrono>

namespace headway::comm {
namespace {

/// inproc with its default options.
struct Inproc {
  static constexpr char const* kName = "inproc";
  static std::vector<std::unique_ptr<Endpoint>> connect(int size, std::size_t landing_bytes) {
    return make_inproc_endpoints(size, landing_bytes);
  }
};

/// inproc that puts into exposed memory instead of reading it.
struct InprocThatExposes {
  static constexpr char const* kName = "inproc_that_exposes";
  static std::vector<std::unique_ptr<Endpoint>> connect(int size, std::size_t landing_bytes) {
    return make_inproc_endpoints(size, landing_bytes, {.can_get = false, .can_put_exposed = true});
  }
};

using InprocEngines = TestedEngines<Inproc, InprocThatExposes>;
HEADWAY_TEST_ENDPOINTS(Engine, InprocEngines);

TEST(InprocConnectTest, ARankThatComesAfterRank0HasGivenUpGetsAnError) {
  using std::chrono::milliseconds;
  MemoryStore store;
  EXPECT_THROW(connect_inproc_endpoint(0, 2, 4096, store, "group", milliseconds(10)), SystemError);
  EXPECT_THROW(connect_inproc_endpoint(1, 2, 4096, store, "group", milliseconds(10)), SystemError);
}

}  // namespace
}  // namespace headway::comm
