// SPDX-License-Identifier: Apache-2.0

// Conformance of inproc, the transport between ranks that are threads of one process.

#include "endpoint_conformance.hpp"
#include "headway/comm/status.hpp"
#include "headway/comm/store.hpp"
#include "transport/inproc/endpoint.hpp"

#include <chrono>

namespace headway::comm {
namespace {

/// inproc with its default options.
struct Inproc {
  static constexpr char const* kName = "inproc";
  static std::vector<std::unique_ptr<Endpoint>> connect(int size, std::size_t receive_buffer_bytes) {
    return make_inproc_endpoints(size, receive_buffer_bytes);
  }
};

/// inproc that puts into windows instead of reading a peer's memory.
struct InprocWithWindows {
  static constexpr char const* kName = "inproc_with_windows";
  static std::vector<std::unique_ptr<Endpoint>> connect(int size, std::size_t receive_buffer_bytes) {
    return make_inproc_endpoints(size, receive_buffer_bytes, {.can_get = false, .can_put_to_window = true});
  }
};

using InprocTransports = TestedTransports<Inproc, InprocWithWindows>;
HEADWAY_TEST_ENDPOINTS(Transport, InprocTransports);

TEST(InprocConnectTest, ARankThatComesAfterRank0HasGivenUpGetsAnError) {
  using std::chrono::milliseconds;
  MemoryStore store;
  // The arguments are rank, size, bytes of the receive buffer, store, name of the group, and timeout.
  EXPECT_THROW(connect_inproc_endpoint(0, 2, 4096, store, "group", milliseconds(10)), SystemError);
  EXPECT_THROW(connect_inproc_endpoint(1, 2, 4096, store, "group", milliseconds(10)), SystemError);
}

}  // namespace
}  // namespace headway::comm
