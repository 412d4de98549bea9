#pragma once

#include "headway/comm/endpoint.hpp"
#include "headway/comm/group.hpp"
#include "headway/comm/store.hpp"
#include "rendezvous/lifeline.hpp"

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

/// Connects the lifelines of one rank.
inline std::vector<Lifeline> connect_test_lifelines(int rank, int size, std::size_t landing_bytes, Store& store,
                                                    Engine engine = Engine::kAuto, std::string name = "") {
  GroupOptions options;
  options.engine = engine;
  options.name = std::move(name);
  return connect_lifelines(rank, {size, landing_bytes, &options}, store, Clock::now() + kConnectPatience);
}

/// Connects one set of lifelines for each of `engines`. Set e keeps only the lifelines to peers of engine e open.
inline std::vector<std::vector<Lifeline>> connect_test_lifelines(int rank, std::size_t landing_bytes, Store& store,
                                                                 std::vector<Engine> const& engines,
                                                                 std::vector<std::size_t> const& engine_of_peer) {
  std::vector<std::vector<Lifeline>> sets;
  for (std::size_t engine = 0; engine < engines.size(); ++engine) {
    auto const size = static_cast<int>(engine_of_peer.size());
    sets.push_back(connect_test_lifelines(rank, size, landing_bytes, store, engines[engine], std::to_string(engine)));
    for (std::size_t peer = 0; peer < engine_of_peer.size(); ++peer) {
      if (engine_of_peer[peer] != engine) sets.back()[peer].fd.reset();
    }
  }
  return sets;
}

/// Connects `size` ranks of Engine. Each rank connects in a thread of its own.
template <typename Engine>
std::vector<std::unique_ptr<Endpoint>> connect_in_threads(int size, std::size_t landing_bytes) {
  MemoryStore store;
  std::vector<std::unique_ptr<Endpoint>> endpoints(static_cast<std::size_t>(size));
  std::vector<std::exception_ptr> errors(endpoints.size());
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank, index = static_cast<std::size_t>(rank)] {
        try {
          endpoints[index] = Engine::connect_rank(rank, size, landing_bytes, store);
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
