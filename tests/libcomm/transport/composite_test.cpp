// SPDX-License-Identifier: Apache-2.0

// Conformance of CompositeEndpoint, which uses another transport for each peer.

#include "connect_in_threads.hpp"
#include "endpoint_conformance.hpp"
#include "transport/composite/endpoint.hpp"
#include "transport/shm/endpoint.hpp"
#include "transport/tcp/endpoint.hpp"

#include <utility>

namespace headway::comm {
namespace {

/// Even and odd ranks pretend to be on two hosts: shm inside a host, tcp between them.
struct Composite {
  static constexpr char const* kName = "composite";

  static std::unique_ptr<Endpoint> connect_rank(int rank, int size, std::size_t receive_buffer_bytes, Store& store) {
    std::vector<std::size_t> transport_of_peer;
    for (int peer = 0; peer < size; ++peer) transport_of_peer.push_back(peer % 2 == rank % 2 ? 0 : 1);
    auto control_sockets =
        connect_test_sockets(rank, receive_buffer_bytes, store, {Transport::kShm, Transport::kTcp}, transport_of_peer);
    std::vector<std::unique_ptr<Endpoint>> transports;
    transports.push_back(
        make_shm_endpoint(rank, size, std::move(control_sockets[0]), {.receive_buffer_bytes = receive_buffer_bytes}));
    transports.push_back(
        std::make_unique<TcpEndpoint>(rank, size, std::move(control_sockets[1]), transports.front()->receive_buffer()));
    return std::make_unique<CompositeEndpoint>(std::move(transports), std::move(transport_of_peer));
  }

  static std::vector<std::unique_ptr<Endpoint>> connect(int size, std::size_t receive_buffer_bytes) {
    return connect_in_threads<Composite>(size, receive_buffer_bytes);
  }
};

using CompositeTransports = TestedTransports<Composite>;
HEADWAY_TEST_ENDPOINTS(Transport, CompositeTransports);
HEADWAY_TEST_PROCESS_ENDPOINTS(Transport, CompositeTransports);

TEST(CompositeTest, EachPeerHasTheTransportOfItsHost) {
  auto const endpoints = Composite::connect(4, 4096);
  EXPECT_EQ(endpoints[0]->traits(2).transport, "shm");
  EXPECT_EQ(endpoints[0]->traits(1).transport, "tcp");
  EXPECT_EQ(endpoints[1]->traits(3).transport, "shm");
  EXPECT_EQ(endpoints[1]->traits(2).transport, "tcp");
}

}  // namespace
}  // namespace headway::comm
