// SPDX-License-Identifier: Apache-2.0

// Endpoints of all ranks of a group in one process, each connected in a thread of its own, as the bootstrap needs all
// ranks at the same time. Afterwards one thread can drive all of them, which makes tests repeatable.

#pragma once

#include "bootstrap/control_socket.hpp"
#include "headway/comm/endpoint.hpp"
#include "headway/comm/group.hpp"
#include "headway/comm/store.hpp"

#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace headway::comm {

inline constexpr auto kConnectPatience = std::chrono::seconds(30);

/// Connects the control sockets of one rank, one to each peer: they carry OOB messages and show the loss of a peer.
/// Several groups may share `store` under different names.
inline std::vector<ControlSocket> connect_test_sockets(int rank, int size, std::size_t receive_buffer_bytes,
                                                       Store& store, Transport transport = Transport::kAuto,
                                                       std::string name = "") {
  GroupOptions options;
  options.transport = transport;
  options.name = std::move(name);
  return connect_control_sockets(rank, {size, receive_buffer_bytes, &options}, store, Clock::now() + kConnectPatience);
}

/// Connects one set of control sockets for each of `transports`. Set e keeps only the control sockets to peers of
/// transport e open. `transport_of_peer` has, for each rank, an index into `transports`.
inline std::vector<std::vector<ControlSocket>> connect_test_sockets(int rank, std::size_t receive_buffer_bytes,
                                                                    Store& store,
                                                                    std::vector<Transport> const& transports,
                                                                    std::vector<std::size_t> const& transport_of_peer) {
  std::vector<std::vector<ControlSocket>> sets;
  for (std::size_t transport = 0; transport < transports.size(); ++transport) {
    auto const size = static_cast<int>(transport_of_peer.size());
    sets.push_back(connect_test_sockets(rank, size, receive_buffer_bytes, store, transports[transport],
                                        std::to_string(transport)));
    for (std::size_t peer = 0; peer < transport_of_peer.size(); ++peer) {
      if (transport_of_peer[peer] != transport) sets.back()[peer].fd.reset();
    }
  }
  return sets;
}

/// Connects `size` ranks of Transport. Each rank connects in a thread of its own.
template <typename Transport>
std::vector<std::unique_ptr<Endpoint>> connect_in_threads(int size, std::size_t receive_buffer_bytes) {
  MemoryStore store;
  std::vector<std::unique_ptr<Endpoint>> endpoints(static_cast<std::size_t>(size));
  std::vector<std::exception_ptr> errors(endpoints.size());
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank, index = static_cast<std::size_t>(rank)] {
        try {
          endpoints[index] = Transport::connect_rank(rank, size, receive_buffer_bytes, store);
        } catch (...) {
          errors[index] = std::current_exception();
        }
      });
    }
  }
  for (auto const& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  return endpoints;
}

}  // namespace headway::comm
