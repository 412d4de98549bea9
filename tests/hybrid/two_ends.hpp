// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/comm/endpoint.hpp"
#include "headway/comm/group.hpp"
#include "headway/comm/store.hpp"
#include "headway/hybrid/requests.hpp"

#include <cstdint>
#include <future>
#include <memory>
#include <utility>

namespace headway::hybrid {

/// Two connected ends of a group of threads, which stands for a link.
/// @param fault_seed of transport `checked`, which delays, repeats and reorders notifications; 0: without it
/// @param can_get whether memory of the peer can be read, as over shm; if not, bodies travel in pieces, as over tcp
inline std::pair<std::unique_ptr<comm::Group>, std::unique_ptr<comm::Group>> make_two_ends(std::uint64_t fault_seed = 0,
                                                                                           bool can_get = true) {
  comm::MemoryStore store;
  auto options = request_link_options({});
  options.transport = comm::Transport::kInproc;
  options.slot_bytes = 4096;
  options.allow_get = can_get;
  options.wrap_checked = fault_seed != 0;
  options.fault_seed = fault_seed;
  auto other = std::async(std::launch::async, [&] { return comm::Group::connect(1, 2, store, options); });
  auto first = comm::Group::connect(0, 2, store, options);
  return {std::move(first), other.get()};
}

}  // namespace headway::hybrid
