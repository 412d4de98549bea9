// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "connect_in_threads.hpp"
#include "transport/verbs/device.hpp"
#include "transport/verbs/endpoint.hpp"

namespace headway::comm {

/// Connects a rank on the first usable device, with `num_rails` queue pairs to each peer. Keeps up to 64 MiB of the
/// memory of allocate() registered.
inline std::unique_ptr<Endpoint> connect_verbs(int rank, int size, std::size_t receive_buffer_bytes, Store& store,
                                               int num_rails) {
  auto control_sockets = connect_test_sockets(rank, size, receive_buffer_bytes, store);
  auto address = verbs::choose_address("", control_sockets);
  return make_verbs_endpoint(
      rank, size, std::move(control_sockets), receive_buffer_bytes,
      {.address = std::move(address), .num_rails = num_rails, .cache_bytes = std::size_t{64} << 20});
}

/// verbs with one queue pair to each peer.
struct Verbs {
  static constexpr char const* kName = "verbs";
  static std::unique_ptr<Endpoint> connect_rank(int rank, int size, std::size_t receive_buffer_bytes, Store& store) {
    return connect_verbs(rank, size, receive_buffer_bytes, store, 1);
  }
  static std::vector<std::unique_ptr<Endpoint>> connect(int size, std::size_t receive_buffer_bytes) {
    return connect_in_threads<Verbs>(size, receive_buffer_bytes);
  }
};

}  // namespace headway::comm
