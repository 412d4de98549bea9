// SPDX-License-Identifier: Apache-2.0

// Conformance of tcp, the transport over the control sockets of the ranks.

#include "connect_in_threads.hpp"
#include "endpoint_conformance.hpp"
#include "transport/tcp/endpoint.hpp"

namespace headway::comm {
namespace {

/// tcp with its default options.
struct Tcp {
  static constexpr char const* kName = "tcp";
  static std::unique_ptr<Endpoint> connect_rank(int rank, int size, std::size_t receive_buffer_bytes, Store& store) {
    return make_tcp_endpoint(rank, size, connect_test_sockets(rank, size, receive_buffer_bytes, store, Transport::kTcp),
                             receive_buffer_bytes);
  }
  static std::vector<std::unique_ptr<Endpoint>> connect(int size, std::size_t receive_buffer_bytes) {
    return connect_in_threads<Tcp>(size, receive_buffer_bytes);
  }
};

using TcpTransports = TestedTransports<Tcp>;
HEADWAY_TEST_ENDPOINTS(Transport, TcpTransports);
HEADWAY_TEST_PROCESS_ENDPOINTS(Transport, TcpTransports);

}  // namespace
}  // namespace headway::comm
