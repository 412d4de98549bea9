// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "deadline_margin.hpp"
#include "headway/serving/engine.hpp"
#include "request_queue.hpp"

#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

namespace headway::serving {

/// Decides which requests a rank takes, holds those that wait for a batch, and counts how they end. Requests come on
/// threads of the front end; batches are taken by the loop of the engine. Thread-safe.
class Admission {
 public:
  Admission(std::shared_ptr<ServedModel const> model, EngineOptions const& options);

  /// Puts a request into the queue, or says why not. It is refused if it does not fit the model, the rank cannot serve,
  /// the queue is full, or its deadline is out of reach.
  /// @param request null afterwards if it waits
  /// @returns the refusal; kAnswered if the request waits
  [[nodiscard]] Reply accept(PendingPtr& request);

  /// Refuses new requests from now on.
  void refuse_new();
  /// Refuses new requests until recover(), with this reason.
  void fail(std::string error);
  /// Takes requests again, for a model.
  void recover(std::shared_ptr<ServedModel const> model);
  /// Waits for fail(). @returns false if `stop` was requested
  [[nodiscard]] bool wait_for_failure(std::stop_token const& stop) const;
  /// Why requests are refused; empty if they are taken.
  [[nodiscard]] std::string why_not_ready() const;
  /// Are new requests refused for good, and does none wait?
  [[nodiscard]] bool has_ended() const;

  [[nodiscard]] std::shared_ptr<ServedModel const> model() const;
  /// Lets later requests and batches use another model.
  void set_model(std::shared_ptr<ServedModel const> model);

  /// Requests for a batch of a model.
  struct Taken {
    std::shared_ptr<ServedModel const> model;
    std::vector<PendingPtr> requests{};
  };
  /// Takes the oldest requests for a batch if one is full, the oldest has waited for the delay, or no more come.
  /// @param is_forced a batch begins in any case, perhaps without requests
  /// @returns model null: no batch begins
  [[nodiscard]] Taken take_batch(Clock::time_point now, bool is_forced);
  /// Takes requests whose deadline has passed.
  [[nodiscard]] std::vector<PendingPtr> take_late(Clock::time_point now);
  /// Takes requests that were accepted for an earlier model, and do not fit the present one.
  [[nodiscard]] std::vector<PendingPtr> take_too_large();
  [[nodiscard]] std::vector<PendingPtr> take_all();
  /// Puts requests back into the queue that were taken last, in their order.
  void put_back(std::vector<PendingPtr> requests);
  /// When take_late() or, if `can_begin`, take_batch() will find something.
  [[nodiscard]] Clock::time_point next_event(bool can_begin) const;

  /// Counts a request that was not answered. @returns the reply
  [[nodiscard]] Reply refuse_as(Outcome outcome, std::string error);
  /// Counts a batch and its requests, and learns how long batches take.
  /// @param requests all of the batch, also those that were refused meanwhile
  void add(BatchRecord const& batch, std::span<PendingPtr const> requests);
  void count_refused_version();
  [[nodiscard]] EngineStatistics statistics() const;

 private:
  // The caller holds `mutex_`.
  [[nodiscard]] Reply refusal(Outcome outcome, std::string error);
  [[nodiscard]] Sizes room() const;
  void expect_fits(PendingRequest& request) const;
  /// Time that the deadline of a request has to leave.
  [[nodiscard]] std::chrono::nanoseconds expected_time(std::size_t rows) const;

  EngineOptions const& options_;
  mutable std::mutex mutex_;
  mutable std::condition_variable_any has_failed_;
  std::shared_ptr<ServedModel const> model_;
  bool is_draining_ = false;
  std::string failure_;  ///< Why the group cannot serve; empty if it can.
  RequestQueue queue_;
  EngineStatistics statistics_;
  /// Averages of batches: time between two ends under load, time from the queue to the end, that of the dense part.
  std::chrono::nanoseconds batch_interval_{0}, batch_time_{0}, dense_time_{0};
  DeadlineMargin margin_;
  Clock::time_point last_reply_{};
};

}  // namespace headway::serving
