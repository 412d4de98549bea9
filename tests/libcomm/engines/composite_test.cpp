#include "connect_in_threads.hpp"
#include "endpoint_conformance.hpp"
#include "engines/composite/endpoint.hpp"
#include "engines/shm/endpoint.hpp"
#include "engines/tcp/endpoint.hpp"

#include <utility>

namespace headway::comm {
namespace {

/// Even and odd ranks pretend to be on two hosts: shm inside a host, tcp between them.
struct Composite {
  static constexpr char const* kName = "composite";

  static std::unique_ptr<Endpoint> connect_rank(int rank, int size, std::size_t landing_bytes, Store& store) {
    std::vector<std::size_t> engine_of_peer;
    for (int peer = 0; peer < size; ++peer) engine_of_peer.push_back(peer % 2 == rank % 2 ? 0 : 1);
    auto lifelines = connect_test_lifelines(rank, landing_bytes, store, {Engine::kShm, Engine::kTcp}, engine_of_peer);
    std::vector<std::unique_ptr<Endpoint>> engines;
    engines.push_back(make_shm_endpoint(rank, size, std::move(lifelines[0]), {.landing_bytes = landing_bytes}));
    engines.push_back(std::make_unique<TcpEndpoint>(rank, size, std::move(lifelines[1]), engines.front()->landing()));
    return std::make_unique<CompositeEndpoint>(std::move(engines), std::move(engine_of_peer));
  }

  static std::vector<std::unique_ptr<Endpoint>> connect(int size, std::size_t landing_bytes) {
    return connect_in_threads<Composite>(size, landing_bytes);
  }
};

using CompositeEngines = TestedEngines<Composite>;
HEADWAY_TEST_ENDPOINTS(Engine, CompositeEngines);
HEADWAY_TEST_PROCESS_ENDPOINTS(Engine, CompositeEngines);

TEST(CompositeTest, EachPeerHasTheEngineOfItsHost) {
  auto const endpoints = Composite::connect(4, 4096);
  EXPECT_EQ(endpoints[0]->traits(2).engine, "shm");
  EXPECT_EQ(endpoints[0]->traits(1).engine, "tcp");
  EXPECT_EQ(endpoints[1]->traits(3).engine, "shm");
  EXPECT_EQ(endpoints[1]->traits(2).engine, "tcp");
}

}  // namespace
}  // namespace headway::comm
