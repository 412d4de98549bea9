#include "endpoint_conformance.hpp"
#include "engines/checked/endpoint.hpp"
#include "engines/composite/endpoint.hpp"
#include "engines/shm/endpoint.hpp"
#include "engines/tcp/endpoint.hpp"
#include "engines/verbs/device.hpp"
#include "engines/verbs/endpoint.hpp"
#include "verbs_engine.hpp"

#include <cstdio>
#include <cstdlib>
#include <utility>

namespace headway::comm {
namespace {

/// Skips all tests if there is no device. ctest recognises the line that it prints.
class NeedsDevice final : public testing::Environment {
 public:
  void SetUp() override {
    if (!verbs::find_addresses().empty()) return;
    std::puts("[  SKIPPED ] this host has no RDMA device that is up");
    std::exit(EXIT_SUCCESS);
  }
};
[[maybe_unused]] auto* const needs_device = testing::AddGlobalTestEnvironment(new NeedsDevice);

/// Three queue pairs to each peer. Puts on different ones may overtake each other.
struct CheckedVerbs {
  static constexpr char const* kName = "checked_verbs_three_rails";
  static std::unique_ptr<Endpoint> connect_rank(int rank, int size, std::size_t landing_bytes, Store& store) {
    return connect_verbs(rank, size, landing_bytes, store, 3);
  }
  static std::vector<std::unique_ptr<Endpoint>> connect(int size, std::size_t landing_bytes) {
    auto endpoints = connect_in_threads<CheckedVerbs>(size, landing_bytes);
    for (auto& endpoint : endpoints) endpoint = std::make_unique<CheckedEndpoint>(std::move(endpoint), 0);
    return endpoints;
  }
};

/// Even and odd ranks pretend to be on two hosts: shm inside a host. Between hosts, some pairs use verbs and the others
/// tcp, as if some hosts had no RDMA device.
struct ShmVerbsTcp {
  static constexpr char const* kName = "shm_verbs_tcp";
  static constexpr std::size_t kShm = 0, kVerbs = 1, kTcp = 2;

  static std::size_t engine_between(int rank, int peer) {
    if (rank % 2 == peer % 2) return kShm;
    return (rank + peer) % 4 == 1 ? kVerbs : kTcp;
  }

  static std::unique_ptr<Endpoint> connect_rank(int rank, int size, std::size_t landing_bytes, Store& store) {
    std::vector<std::size_t> engine_of_peer;
    for (int peer = 0; peer < size; ++peer) engine_of_peer.push_back(engine_between(rank, peer));
    auto lifelines =
        connect_test_lifelines(rank, landing_bytes, store, {Engine::kShm, Engine::kTcp, Engine::kTcp}, engine_of_peer);
    std::vector<std::unique_ptr<Endpoint>> engines;
    engines.push_back(make_shm_endpoint(rank, size, std::move(lifelines[kShm]), {.landing_bytes = landing_bytes}));
    auto const landing = engines.front()->landing();
    auto const address = verbs::choose_address("", lifelines[kVerbs]);
    engines.push_back(std::make_unique<VerbsEndpoint>(rank, size, std::move(lifelines[kVerbs]), landing,
                                                      verbs::Settings{.address = address}));
    engines.push_back(std::make_unique<TcpEndpoint>(rank, size, std::move(lifelines[kTcp]), landing));
    return std::make_unique<CompositeEndpoint>(std::move(engines), std::move(engine_of_peer));
  }
  static std::vector<std::unique_ptr<Endpoint>> connect(int size, std::size_t landing_bytes) {
    return connect_in_threads<ShmVerbsTcp>(size, landing_bytes);
  }
};

using VerbsEngines = TestedEngines<Verbs, CheckedVerbs, ShmVerbsTcp>;
HEADWAY_TEST_ENDPOINTS(Engine, VerbsEngines);
using VerbsProcesses = TestedEngines<Verbs, ShmVerbsTcp>;
HEADWAY_TEST_PROCESS_ENDPOINTS(Engine, VerbsProcesses);

}  // namespace
}  // namespace headway::comm
