#pragma once

#include "headway/comm/endpoint.hpp"
#include "headway/comm/group.hpp"
#include "headway/comm/store.hpp"
#include "rendezvous/lifeline.hpp"

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

/// The lifelines of one rank.
inline std::vector<Lifeline> connect_test_lifelines(int rank, int size, std::size_t landing_bytes, Store& store,
                                                    Engine engine = Engine::kAuto, std::string name = "") {
  GroupOptions options;
  options.engine = engine;
  options.name = std::move(name);
  return connect_lifelines(rank, {size, landing_bytes, &options}, store, Clock::now() + kConnectPatience);
}

/// Connects `size` ranks of Engine, each in a thread of its own while it connects.
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
