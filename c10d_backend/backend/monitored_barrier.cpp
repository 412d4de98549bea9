// SPDX-License-Identifier: Apache-2.0

// A barrier that names the ranks that do not come.
//
// Idea: it uses the store and no operation of the group, so a rank that does not come costs this barrier and not the
// group. Each rank writes a key when it arrives. Rank 0 waits for all keys, and then writes the result: "passed", or
// the error with the missing ranks. The other ranks wait for the result.
//
// Example with 4 ranks, of which rank 2 hangs: ranks 1 and 3 write "1" and "3". After the timeout rank 0 finds no "2",
// throws "[Rank 0]: Rank 2 failed to pass monitoredBarrier in 2000 ms", and writes this text. Ranks 1 and 3 read it
// and throw as well. If rank 2 comes later, it reads the same result and throws at once.
//
// Invariants: barriers are numbered per rank. All ranks must call the same barriers, as for every collective.
// Complexity: rank 0 asks the store for all keys in one request, after pauses that double up to kLongestPause.
// Source: the texts of PyTorch's Gloo group, which programs and tests look for.

#include "backend/headway_backend.hpp"
#include "runtime/errors.hpp"
#include "runtime/interpreter.hpp"

#include <algorithm>
#include <string>
#include <thread>
#include <utility>

namespace headway::c10d_backend {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kShortestPause{1};
constexpr std::chrono::milliseconds kLongestPause{50};
/// Time beyond its timeout for which a rank waits for the result. Rank 0 writes it only when its own timeout is over.
constexpr std::chrono::milliseconds kAnswerTime{1000};

std::string joined(std::vector<int> const& ranks) {
  std::string text;
  for (int const rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return text;
}

[[noreturn]] void fail(std::string const& text) { TORCH_CHECK_WITH(DistBackendError, false, text); }

}  // namespace

bool HeadwayBackend::wait_for_keys(std::vector<std::string> const& keys, std::chrono::milliseconds timeout) {
  auto const deadline = Clock::now() + std::min(timeout, comm::kLongestTimeout);
  auto pause = kShortestPause;
  for (;;) {
    if (keys.empty() || store_->check(keys)) return true;
    // A rank that is lost never comes, so the failure of the group ends the wait.
    translate_errors("monitored_barrier", [&] {
      if (auto health = handle()->group().monitor().health(); !health.ok()) {
        throw comm::OperationError(std::move(health));
      }
    });
    if (Clock::now() >= deadline) return false;
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, kLongestPause);
    raise_pending_signals();
  }
}

void HeadwayBackend::monitoredBarrier(c10d::BarrierOptions const& options, bool wait_all_ranks) {
  ReleasedGil const released;
  auto const timeout = options.timeout.count() >= 0 ? options.timeout : timeout_.load();
  auto const prefix = barrier_prefix_ + std::to_string(num_monitored_barriers_++) + "/";
  std::string const result_key = prefix + "result";
  if (getRank() != 0) {
    store_->set(prefix + std::to_string(getRank()), "here");
    std::string const reached = "Rank " + std::to_string(getRank()) +
                                " successfully reached monitoredBarrier, but received errors while waiting for "
                                "send/recv from rank 0";
    if (!wait_for_keys({result_key}, timeout + kAnswerTime)) {
      fail("headway: " + reached + ": rank 0 gave no answer within " + std::to_string(timeout.count()) + " ms");
    }
    auto const result = store_->get_to_str(result_key);
    if (result != "passed") fail("headway: " + reached + ": " + result);
    return;
  }
  std::vector<std::string> keys;
  for (int rank = 1; rank < getSize(); ++rank) keys.push_back(prefix + std::to_string(rank));
  std::vector<int> missing;
  if (!wait_for_keys(keys, timeout)) {
    for (int rank = 1; rank < getSize(); ++rank) {
      if (!store_->check({keys[static_cast<std::size_t>(rank - 1)]})) missing.push_back(rank);
    }
  }
  if (missing.empty()) {
    store_->set(result_key, "passed");
    // The store keeps one result: all ranks have read the one before, since they have come to this barrier.
    for (auto const& key : keys) store_->deleteKey(key);
    if (!last_barrier_result_.empty()) store_->deleteKey(last_barrier_result_);
    last_barrier_result_ = result_key;
    return;
  }
  if (!wait_all_ranks) missing.erase(missing.begin() + 1, missing.end());
  // A timeout of 0 is over before any rank can come, which is not their fault.
  std::string const own = timeout.count() == 0 ? "Rank 0 timed out in monitoredBarrier after 0 ms: " : "";
  std::string const text = own + "[Rank 0]: " + (wait_all_ranks ? "Ranks " : "Rank ") + joined(missing) +
                           " failed to pass monitoredBarrier in " + std::to_string(timeout.count()) + " ms";
  store_->set(result_key, text);
  fail("headway: " + text);
}

}  // namespace headway::c10d_backend
