// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/serving/engine.hpp"

#include <algorithm>
#include <chrono>
#include <deque>
#include <exception>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

namespace headway::serving {

/// A request that the engine has accepted. The loop replies to it once. If an exception ends the work on it, its
/// destructor does.
struct PendingRequest {
  PendingRequest() = default;
  PendingRequest(PendingRequest const&) = delete;
  PendingRequest& operator=(PendingRequest const&) = delete;
  ~PendingRequest() {
    if (!reply) return;
    try {
      reply({.outcome = Outcome::kFailed, .error = "an internal error has ended the batch of the request"});
    } catch (std::exception const&) {  // There is nobody to tell.
    }
  }

  Request request;
  Sizes sizes;
  std::size_t num_bytes = 0;
  Clock::time_point accepted{}, deadline{};
  std::chrono::nanoseconds allowed{0};  ///< Longest time in which it was expected; 0: nothing waited before it.
  ReplyFunction reply;                  ///< Empty once it is called.
  std::size_t first_item = 0;           ///< Index of its first item in the batch.
};
using PendingPtr = std::unique_ptr<PendingRequest>;

/// Requests that wait for a batch, oldest first.
class RequestQueue {
 public:
  void push(PendingPtr request) {
    rows_ += request->sizes.items;
    bytes_ += request->num_bytes;
    first_deadline_ = std::min(first_deadline_, request->deadline);
    requests_.push_back(std::move(request));
  }
  /// Puts requests back that were taken last, in their order.
  void put_back(std::vector<PendingPtr> requests) {
    for (auto& request : requests) {
      rows_ += request->sizes.items;
      bytes_ += request->num_bytes;
      first_deadline_ = std::min(first_deadline_, request->deadline);
    }
    requests_.insert(requests_.begin(), std::make_move_iterator(requests.begin()),
                     std::make_move_iterator(requests.end()));
  }
  /// Takes the oldest request.
  [[nodiscard]] PendingPtr pop() {
    auto first = std::move(requests_.front());
    requests_.pop_front();
    rows_ -= first->sizes.items;
    bytes_ -= first->num_bytes;
    return first;
  }
  /// Takes requests from the front while a batch has room for them.
  [[nodiscard]] std::vector<PendingPtr> take_batch(Sizes const& room) {
    std::vector<PendingPtr> taken;
    Sizes sum;
    while (!requests_.empty()) {
      auto next = sum;
      next += requests_.front()->sizes;
      if (!room.holds(next)) break;
      sum = next;
      taken.push_back(pop());
    }
    return taken;
  }
  /// Does a batch of the oldest requests have no room for one more?
  [[nodiscard]] bool fills(Sizes const& room) const {
    Sizes sum;
    for (auto const& request : requests_) {
      sum += request->sizes;
      if (!room.holds(sum) || sum.items == room.items) return true;
    }
    return false;
  }
  /// Takes requests whose deadline has passed.
  [[nodiscard]] std::vector<PendingPtr> take_late(Clock::time_point now) {
    std::vector<PendingPtr> late;
    first_deadline_ = Clock::time_point::max();
    for (auto& request : requests_) {
      if (request->deadline > now) {
        first_deadline_ = std::min(first_deadline_, request->deadline);
        continue;
      }
      rows_ -= request->sizes.items;
      bytes_ -= request->num_bytes;
      late.push_back(std::move(request));
    }
    if (!late.empty()) std::erase(requests_, nullptr);
    return late;
  }
  [[nodiscard]] std::vector<PendingPtr> take_all() {
    std::vector<PendingPtr> all;
    while (!requests_.empty()) all.push_back(pop());
    return all;
  }
  [[nodiscard]] bool empty() const { return requests_.empty(); }
  [[nodiscard]] PendingRequest const& oldest() const { return *requests_.front(); }
  /// No deadline is earlier. It may be that of a request that has left; take_late() corrects it.
  [[nodiscard]] Clock::time_point first_deadline() const { return first_deadline_; }
  [[nodiscard]] std::size_t rows() const { return rows_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  std::deque<PendingPtr> requests_;
  std::size_t rows_ = 0, bytes_ = 0;
  Clock::time_point first_deadline_ = Clock::time_point::max();
};

}  // namespace headway::serving
