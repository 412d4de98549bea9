// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "credentials.hpp"
#include "headway/serving/latency_histogram.hpp"
#include "open_inference.pb.h"

#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace headway::serving {

/// How requests are sent. Open loop: at times drawn from a seed, or at given ones, whatever the server does. Closed
/// loop: a number of clients each send the next request when the one before is answered.
struct LoadOptions {
  std::vector<std::string> addresses;  ///< Ranks, which take turns.
  double requests_per_s = 100;         ///< Open loop: mean rate of a Poisson process. 0: closed loop.
  /// Open loop: times of the requests, ascending, from the first. They replace the rate, `warmup` and `duration`.
  std::vector<std::chrono::nanoseconds> times{};
  std::size_t num_clients = 8;                 ///< Closed loop.
  std::chrono::milliseconds warmup{1000};      ///< Requests due in it are sent, and not counted.
  std::chrono::milliseconds duration{10'000};  ///< Time after the warm-up in which requests are due.
  std::chrono::milliseconds timeout{1000};     ///< Deadline of a request, from when it was due.
  std::uint64_t seed = 1;                      ///< Decides the times.
  std::function<bool()> must_stop{};           ///< Ends the load early when it returns true. Called by any thread.
  bool keeps_replies = false;                  ///< Fills LoadResult::replies.
  TlsFiles tls{};
};

/// Bytes that were replied to a request.
struct ReplyKey {
  std::size_t request = 0;  ///< Index of the request.
  std::string version{};    ///< Model that has answered.
  std::uint32_t crc32 = 0;  ///< CRC-32 of the contents of all outputs, one after the other.

  friend auto operator<=>(ReplyKey const&, ReplyKey const&) = default;
};

/// Outcomes of the requests that were due in LoadOptions::duration.
struct LoadResult {
  LatencyHistogram answered;                      ///< Time from when a request was due to its answer.
  LatencyHistogram refused;                       ///< The same of requests with another status.
  std::map<std::string, std::uint64_t> statuses;  ///< Requests by the name of their gRPC status.
  std::map<std::string, std::uint64_t> errors;    ///< Some of their messages.
  std::map<std::string, std::uint64_t> versions;  ///< Answers by version of the model.
  std::map<ReplyKey, std::uint64_t> replies;      ///< Number of each of them, with the warm-up.
  std::uint64_t answered_rows = 0;
  double offered_per_s = 0;    ///< Rate of an open loop; 0: closed.
  double seconds = 0;          ///< Until the last of them had ended.
  LatencyHistogram sent_late;  ///< Time from when a request was due until it was sent.
};

/// Sends requests, one after the other from `requests`, again from the first after the last.
/// @throws base::UsageError if there are no addresses or requests
[[nodiscard]] LoadResult generate_load(std::vector<inference::ModelInferRequest> const& requests,
                                       LoadOptions const& options);

}  // namespace headway::serving
