#include "connect_in_threads.hpp"
#include "endpoint_conformance.hpp"
#include "engines/checked/endpoint.hpp"
#include "engines/verbs/device.hpp"
#include "engines/verbs/endpoint.hpp"

#include <cstdio>
#include <cstdlib>

namespace headway::comm {
namespace {

/// Without a device none of these tests can run; ctest takes the line for what it is.
class NeedsDevice final : public testing::Environment {
 public:
  void SetUp() override {
    if (!verbs::find_addresses().empty()) return;
    std::puts("[  SKIPPED ] this host has no RDMA device that is up");
    std::exit(EXIT_SUCCESS);
  }
};
[[maybe_unused]] auto* const needs_device = testing::AddGlobalTestEnvironment(new NeedsDevice);

struct Verbs {
  static constexpr char const* kName = "verbs";
  static std::unique_ptr<Endpoint> connect_rank(int rank, int size, std::size_t landing_bytes, Store& store) {
    return make_verbs_endpoint(rank, size, connect_test_lifelines(rank, size, landing_bytes, store), landing_bytes, "");
  }
  static std::vector<std::unique_ptr<Endpoint>> connect(int size, std::size_t landing_bytes) {
    return connect_in_threads<Verbs>(size, landing_bytes);
  }
};

struct CheckedVerbs {
  static constexpr char const* kName = "checked_verbs";
  static std::vector<std::unique_ptr<Endpoint>> connect(int size, std::size_t landing_bytes) {
    auto endpoints = Verbs::connect(size, landing_bytes);
    for (auto& endpoint : endpoints) endpoint = std::make_unique<CheckedEndpoint>(std::move(endpoint), 0);
    return endpoints;
  }
};

using VerbsEngines = testing::Types<Verbs, CheckedVerbs>;
HEADWAY_TEST_ENDPOINTS(Engine, VerbsEngines);
using VerbsProcesses = testing::Types<Verbs>;
HEADWAY_TEST_PROCESS_ENDPOINTS(Engine, VerbsProcesses);

}  // namespace
}  // namespace headway::comm
