#include "endpoint_conformance.hpp"
#include "engines/inproc/endpoint.hpp"

namespace headway::comm {
namespace {

struct Inproc {
  static constexpr char const* kName = "inproc";
  static std::vector<std::unique_ptr<Endpoint>> connect(int size, std::size_t landing_bytes) {
    return make_inproc_endpoints(size, landing_bytes);
  }
};

struct InprocThatExposes {
  static constexpr char const* kName = "inproc_that_exposes";
  static std::vector<std::unique_ptr<Endpoint>> connect(int size, std::size_t landing_bytes) {
    return make_inproc_endpoints(size, landing_bytes, {.can_get = false, .can_put_exposed = true});
  }
};

using InprocEngines = TestedEngines<Inproc, InprocThatExposes>;
HEADWAY_TEST_ENDPOINTS(Engine, InprocEngines);

}  // namespace
}  // namespace headway::comm
