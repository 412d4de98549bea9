// SPDX-License-Identifier: Apache-2.0

// Conformance of CheckedEndpoint (the checker) over other transports, with and without injected faults: notifications
// that are delayed, repeated and reordered.

#include "connect_in_threads.hpp"
#include "endpoint_conformance.hpp"
#include "transport/checked/endpoint.hpp"
#include "transport/inproc/endpoint.hpp"
#include "transport/shm/endpoint.hpp"

namespace headway::comm {
namespace {

/// Wraps every endpoint in a CheckedEndpoint. Seed 0 means no faults.
std::vector<std::unique_ptr<Endpoint>> wrap(std::vector<std::unique_ptr<Endpoint>> transports,
                                            std::uint64_t fault_seed) {
  for (auto& transport : transports) transport = std::make_unique<CheckedEndpoint>(std::move(transport), fault_seed);
  return transports;
}

/// inproc under the checker, without faults.
struct CheckedInproc {
  static constexpr char const* kName = "checked_inproc";
  static std::vector<std::unique_ptr<Endpoint>> connect(int size, std::size_t receive_buffer_bytes) {
    return wrap(make_inproc_endpoints(size, receive_buffer_bytes, {.can_get = true, .can_put_to_window = true}), 0);
  }
};

/// inproc under the checker, with faults of a fixed seed.
struct FaultyInproc {
  static constexpr char const* kName = "faulty_inproc";
  static std::vector<std::unique_ptr<Endpoint>> connect(int size, std::size_t receive_buffer_bytes) {
    return wrap(make_inproc_endpoints(size, receive_buffer_bytes, {.can_get = true, .can_put_to_window = true}),
                20240607);
  }
};

/// shm under the checker, with faults of a fixed seed.
struct FaultyShm {
  static constexpr char const* kName = "faulty_shm";
  static std::unique_ptr<Endpoint> connect_rank(int rank, int size, std::size_t receive_buffer_bytes, Store& store) {
    auto control_sockets = connect_test_sockets(rank, size, receive_buffer_bytes, store);
    return std::make_unique<CheckedEndpoint>(
        make_shm_endpoint(rank, size, std::move(control_sockets), {.receive_buffer_bytes = receive_buffer_bytes}), 7);
  }
  static std::vector<std::unique_ptr<Endpoint>> connect(int size, std::size_t receive_buffer_bytes) {
    return connect_in_threads<FaultyShm>(size, receive_buffer_bytes);
  }
};

using CheckedTransports = TestedTransports<CheckedInproc, FaultyInproc, FaultyShm>;
HEADWAY_TEST_ENDPOINTS(Transport, CheckedTransports);
using CheckedProcessTransports = TestedTransports<FaultyShm>;
HEADWAY_TEST_PROCESS_ENDPOINTS(Transport, CheckedProcessTransports);

}  // namespace
}  // namespace headway::comm
