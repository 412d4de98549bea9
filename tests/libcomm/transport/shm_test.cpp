// SPDX-License-Identifier: Apache-2.0

// Conformance of shm, the transport through memory that ranks of one host share.

#include "connect_in_threads.hpp"
#include "endpoint_conformance.hpp"
#include "transport/shm/endpoint.hpp"

namespace headway::comm {
namespace {

/// shm with its default options.
struct Shm {
  static constexpr char const* kName = "shm";
  static std::unique_ptr<Endpoint> connect_rank(int rank, int size, std::size_t receive_buffer_bytes, Store& store) {
    return make_shm_endpoint(rank, size, connect_test_sockets(rank, size, receive_buffer_bytes, store),
                             {.receive_buffer_bytes = receive_buffer_bytes});
  }
  static std::vector<std::unique_ptr<Endpoint>> connect(int size, std::size_t receive_buffer_bytes) {
    return connect_in_threads<Shm>(size, receive_buffer_bytes);
  }
};

using ShmTransports = TestedTransports<Shm>;
HEADWAY_TEST_ENDPOINTS(Transport, ShmTransports);
HEADWAY_TEST_PROCESS_ENDPOINTS(Transport, ShmTransports);

}  // namespace
}  // namespace headway::comm
