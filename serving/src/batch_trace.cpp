// SPDX-License-Identifier: Apache-2.0
#include "batch_trace.hpp"

#include "headway/base/status.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace headway::serving {

namespace {

using nlohmann::json;
using Microseconds = std::chrono::duration<double, std::micro>;

/// Makes events of one rank.
class Events {
 public:
  explicit Events(int rank) : rank_(rank) {
    rows_.push_back(
        {{"ph", "M"}, {"pid", rank_}, {"name", "process_name"}, {"args", {{"name", "rank " + text(rank)}}}});
  }

  void add(BatchRecord const& batch) {
    auto const row = row_for(batch);
    auto const name = "batch " + std::to_string(batch.number);
    slice(row, name, batch.taken, batch.replied,
          {{"items", batch.items}, {"requests", batch.accepted.size()}, {"in_flight", batch.in_flight}});
    slice(row, "delay", batch.taken, batch.fetch_began);
    slice(row, "fetch", batch.fetch_began, batch.fetched);
    slice(row, "dense queue", batch.handed_over, batch.dense_began);
    slice(row, "dense", batch.dense_began, batch.dense_ended);
    for (auto const& arrival : batch.arrivals) {
      auto event = at("i", row, "rows of rank " + std::to_string(arrival.rank), arrival.time);
      event["s"] = "t";
      rows_.push_back(std::move(event));
    }
    for (std::size_t i = 0; i < batch.accepted.size(); ++i) {
      for (auto const& [phase, time] : {std::pair("b", batch.accepted[i]), std::pair("e", batch.replied)}) {
        auto event = at(phase, 0, "request", time);
        event["cat"] = "request";
        event["id"] = text(rank_) + "." + std::to_string(batch.number) + "." + std::to_string(i);
        event["args"] = {{"batch", batch.number}};
        rows_.push_back(std::move(event));
      }
    }
  }

  [[nodiscard]] json take() && {
    for (std::size_t row = 1; row <= row_ends_.size(); ++row) {
      rows_.push_back({{"ph", "M"},
                       {"pid", rank_},
                       {"tid", row},
                       {"name", "thread_name"},
                       {"args", {{"name", "batches in flight, " + std::to_string(row)}}}});
    }
    return {{"traceEvents", std::move(rows_)}, {"displayTimeUnit", "ms"}};
  }

 private:
  static std::string text(int number) { return std::to_string(number); }
  [[nodiscard]] json at(char const* phase, std::size_t row, std::string const& name, Clock::time_point time) const {
    auto const since_1970 = std::chrono::duration_cast<Microseconds>(time.time_since_epoch() + offset_);
    return {{"ph", phase}, {"pid", rank_}, {"tid", row}, {"name", name}, {"ts", since_1970.count()}};
  }
  void slice(std::size_t row, std::string const& name, Clock::time_point begin, Clock::time_point end,
             json arguments = json::object()) {
    auto event = at("X", row, name, begin);
    event["dur"] = Microseconds(end - begin).count();
    event["args"] = std::move(arguments);
    rows_.push_back(std::move(event));
  }
  /// First row, counted from 1, whose last batch has ended when this one begins.
  std::size_t row_for(BatchRecord const& batch) {
    auto found = std::ranges::find_if(row_ends_, [&](auto end) { return end <= batch.taken; });
    if (found == row_ends_.end()) found = row_ends_.emplace(found);
    *found = batch.replied;
    return static_cast<std::size_t>(found - row_ends_.begin()) + 1;
  }

  int rank_;
  std::chrono::nanoseconds offset_ =
      std::chrono::system_clock::now().time_since_epoch() - Clock::now().time_since_epoch();
  json rows_ = json::array();
  std::vector<Clock::time_point> row_ends_;
};

}  // namespace

void BatchTrace::add(BatchRecord const& batch) {
  std::lock_guard const lock(mutex_);
  batches_.push_back(batch);
  num_requests_ += batch.accepted.size();
  while (batches_.size() > most_batches_ || (num_requests_ > most_requests_ && batches_.size() > 1)) {
    num_requests_ -= batches_.front().accepted.size();
    batches_.pop_front();
  }
}

void BatchTrace::write(std::filesystem::path const& path) const {
  auto batches = [this] {
    std::lock_guard const lock(mutex_);
    return batches_;
  }();
  // The dense part may end batches in another order than they began in.
  std::ranges::sort(batches, {}, &BatchRecord::taken);
  Events events(rank_);
  for (auto const& batch : batches) events.add(batch);
  std::ofstream file(path);
  file << std::move(events).take() << std::flush;
  if (!file) throw base::SystemError("writing a trace", errno, "to " + path.string());
}

std::filesystem::path path_of_rank(std::filesystem::path const& path, int rank) {
  auto of_rank = path;
  return of_rank.replace_extension(".rank" + std::to_string(rank) + path.extension().string());
}

}  // namespace headway::serving
