// SPDX-License-Identifier: Apache-2.0

// Conformance of verbs, the RDMA transport: alone, under the checker with several rails, and beside shm and tcp.

#include "endpoint_conformance.hpp"
#include "transport/checked/endpoint.hpp"
#include "transport/composite/endpoint.hpp"
#include "transport/shm/endpoint.hpp"
#include "transport/tcp/endpoint.hpp"
#include "transport/verbs/device.hpp"
#include "transport/verbs/endpoint.hpp"
#include "verbs_transport.hpp"

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

/// Three queue pairs (rails) to each peer. Puts on different ones may overtake each other.
struct CheckedVerbs {
  static constexpr char const* kName = "checked_verbs_three_rails";
  static std::unique_ptr<Endpoint> connect_rank(int rank, int size, std::size_t receive_buffer_bytes, Store& store) {
    return connect_verbs(rank, size, receive_buffer_bytes, store, 3);
  }
  static std::vector<std::unique_ptr<Endpoint>> connect(int size, std::size_t receive_buffer_bytes) {
    auto endpoints = connect_in_threads<CheckedVerbs>(size, receive_buffer_bytes);
    for (auto& endpoint : endpoints) endpoint = std::make_unique<CheckedEndpoint>(std::move(endpoint), 0);
    return endpoints;
  }
};

/// Even and odd ranks pretend to be on two hosts: shm inside a host. Between hosts, some pairs use verbs and the others
/// tcp, as if some hosts had no RDMA device.
struct ShmVerbsTcp {
  static constexpr char const* kName = "shm_verbs_tcp";
  static constexpr std::size_t kShm = 0, kVerbs = 1, kTcp = 2;

  static std::size_t transport_between(int rank, int peer) {
    if (rank % 2 == peer % 2) return kShm;
    return (rank + peer) % 4 == 1 ? kVerbs : kTcp;
  }

  static std::unique_ptr<Endpoint> connect_rank(int rank, int size, std::size_t receive_buffer_bytes, Store& store) {
    std::vector<std::size_t> transport_of_peer;
    for (int peer = 0; peer < size; ++peer) transport_of_peer.push_back(transport_between(rank, peer));
    auto control_sockets = connect_test_sockets(rank, receive_buffer_bytes, store,
                                                {Transport::kShm, Transport::kTcp, Transport::kTcp}, transport_of_peer);
    std::vector<std::unique_ptr<Endpoint>> transports;
    transports.push_back(make_shm_endpoint(rank, size, std::move(control_sockets[kShm]),
                                           {.receive_buffer_bytes = receive_buffer_bytes}));
    auto const receive_buffer = transports.front()->receive_buffer();
    auto const address = verbs::choose_address("", control_sockets[kVerbs]);
    transports.push_back(std::make_unique<VerbsEndpoint>(rank, size, std::move(control_sockets[kVerbs]), receive_buffer,
                                                         verbs::Settings{.address = address}));
    transports.push_back(std::make_unique<TcpEndpoint>(rank, size, std::move(control_sockets[kTcp]), receive_buffer));
    return std::make_unique<CompositeEndpoint>(std::move(transports), std::move(transport_of_peer));
  }
  static std::vector<std::unique_ptr<Endpoint>> connect(int size, std::size_t receive_buffer_bytes) {
    return connect_in_threads<ShmVerbsTcp>(size, receive_buffer_bytes);
  }
};

using VerbsTransports = TestedTransports<Verbs, CheckedVerbs, ShmVerbsTcp>;
HEADWAY_TEST_ENDPOINTS(Transport, VerbsTransports);
using VerbsProcesses = TestedTransports<Verbs, ShmVerbsTcp>;
HEADWAY_TEST_PROCESS_ENDPOINTS(Transport, VerbsProcesses);

}  // namespace
}  // namespace headway::comm
