// SPDX-License-Identifier: Apache-2.0

// A group of endpoints that one thread polls in turn. Tests say what must become true; poll_until() polls every rank
// until it is, or until the time is up.

#pragma once

#include "headway/comm/endpoint.hpp"
#include "recording_sink.hpp"

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

namespace headway::comm {

inline constexpr auto kTestPatience = std::chrono::seconds(20);  ///< Limit of a wait; only a failing test reaches it.

/// All endpoints of one group, driven by one thread. It polls them in turn, so tests are repeatable.
class EndpointGroup {
 public:
  explicit EndpointGroup(std::vector<std::unique_ptr<Endpoint>> endpoints)
      : endpoints_(std::move(endpoints)), sinks_(endpoints_.size()) {}

  [[nodiscard]] int size() const { return static_cast<int>(sinks_.size()); }
  Endpoint& operator[](int rank) { return *endpoints_[static_cast<std::size_t>(rank)]; }
  /// Reports that polls of `rank` have made so far.
  RecordingSink& heard(int rank) { return sinks_[static_cast<std::size_t>(rank)]; }
  /// Destroys the endpoint of `rank`, so that its peers lose it.
  void drop(int rank) { endpoints_[static_cast<std::size_t>(rank)].reset(); }

  bool poll(int rank) { return (*this)[rank].poll(heard(rank)); }

  bool poll_all() {
    bool moved = false;
    for (int rank = 0; rank < size(); ++rank) {
      if (endpoints_[static_cast<std::size_t>(rank)]) moved = poll(rank) || moved;
    }
    if (!moved) std::this_thread::yield();
    return moved;
  }

  /// Polls all ranks until `done()`. @returns false if that does not happen in time.
  template <typename Predicate>
  [[nodiscard]] bool poll_until(Predicate done, Clock::duration patience = kTestPatience) {
    for (Deadline const deadline = Clock::now() + patience; !done();) {
      if (Clock::now() > deadline) return false;
      poll_all();
    }
    return true;
  }

  /// Polls all ranks until nothing has moved for a while.
  [[nodiscard]] bool settle() {
    int quiet_rounds = 0;
    return poll_until([&] {
      quiet_rounds = poll_all() ? 0 : quiet_rounds + 1;
      return quiet_rounds >= 100;
    });
  }

  /// Puts and submits. Polls all ranks while there is no credit.
  void put(int from, Destination const& destination, std::span<std::byte const> header,
           std::span<std::byte const> payload, Tag tag) {
    bool const accepted = poll_until([&] {
      Status const status = (*this)[from].put(destination, header, payload, tag);
      if (!status.ok() && status.code() != StatusCode::kWouldBlock) {
        throw std::runtime_error("put() failed: " + std::string(status.message()));
      }
      (*this)[from].submit();
      return status.ok();
    });
    if (!accepted) throw std::runtime_error("put() got no credit though all ranks poll");
  }

 private:
  std::vector<std::unique_ptr<Endpoint>> endpoints_;
  std::vector<RecordingSink> sinks_;
};

}  // namespace headway::comm
