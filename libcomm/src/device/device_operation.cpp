// SPDX-License-Identifier: Apache-2.0

// One operation of a device group: whether it is done, whether it failed, and which rank it waits for.
//
// Idea: two sources show the state of an operation. The completion event tells that the streams are through it. The
// sync words in host memory tell which peers have done their part, and a CPU can read them without the driver. After
// a failure all waits are released, so the event alone does not mean success: an operation is good only if its event
// had fired while no failure was visible yet.
//
// Example: rank 2 of four is killed during an all-to-all. Rank 0 reads `arrived` of its link to rank 2, finds it too
// small, and reports "operation 17 of all_to_all_v on CUDA device 0, channel 0, lacks 4096 bytes from rank 2".
//
// Invariants: `is_good_` never goes back to false, so a failure of the group does not spoil operations that were seen
// done. Complexity: done() is one driver call; the reports are O(awaited words).

#include "device/device_operation.hpp"

#include <algorithm>

namespace headway::comm {

bool DeviceOperationImpl::done() {
  peer_copy::ContextScope const scope(*context_);
  CUresult const result = context_->call().event_query(completion_.get());
  if (result == CUDA_ERROR_NOT_READY) return false;
  context_->check(result, "cuEventQuery");
  if (is_good_) return true;
  if (find_failed_peer() >= 0 && !has_reason()) return false;
  if (first_failure().ok()) is_good_ = true;  // A later failure does not matter.
  return true;
}

Status DeviceOperationImpl::status() { return is_good_ ? Status() : first_failure(); }

int DeviceOperationImpl::find_failed_peer() const {
  auto const found = std::ranges::find_if(awaited_, [](auto const& word) { return word.link->peer_has_failed(); });
  return found == awaited_.end() ? -1 : found->peer;
}

bool DeviceOperationImpl::has_reason() const {
  if (failure_->is_set.load(std::memory_order_acquire)) return true;
  auto const now = Clock::now().time_since_epoch().count();
  Clock::rep unset = 0;
  // The first thread that sees the failure sets the time.
  Clock::rep const seen = peer_failure_seen_.compare_exchange_strong(unset, now) ? now : unset;
  return now - seen >= Clock::duration(kReasonTime).count();
}

Status DeviceOperationImpl::first_failure() const {
  int const failed_peer = find_failed_peer();
  if (failed_peer >= 0 && !has_reason()) return {};
  if (failure_->is_set.load(std::memory_order_acquire)) return failure_->status;
  if (failed_peer < 0) return {};
  return {StatusCode::kAborted, "rank " + std::to_string(failed_peer) + " failed, and " + describe_missing()};
}

void DeviceOperationImpl::join(DeviceStream stream) {
  peer_copy::ContextScope const scope(*context_);
  context_->check(context_->call().stream_wait_event(static_cast<CUstream>(stream), completion_.get(), 0),
                  "cuStreamWaitEvent");
}

bool DeviceOperationImpl::has_all() const {
  return std::ranges::all_of(awaited_, [](auto const& word) { return word.has_come(); });
}

bool DeviceOperationImpl::needs(int peer) const {
  return std::ranges::any_of(awaited_, [&](auto const& word) { return word.peer == peer && !word.has_come(); });
}

FlightRecord DeviceOperationImpl::flight_record(FlightState state, FlightClock::Reading const& clock) const {
  auto record = make_flight_record(flight_.title, flight_.entry, state, clock);
  auto const has = [&](int peer, bool is_of_receive) {
    return std::ranges::any_of(awaited_, [&](auto const& word) {
      return word.peer == peer && word.is_of_receive() == is_of_receive && !word.has_come();
    });
  };
  int most = 0;
  for (auto const& word : awaited_) most = std::max(most, word.peer + 1);
  record.waiting_for = select_ranks(
      most, [&](int peer) { return has(peer, true); }, [&](int peer) { return has(peer, false); });
  return record;
}

std::string DeviceOperationImpl::describe_missing() const {
  std::string text;
  for (auto const& word : awaited_) {
    if (word.has_come()) continue;
    text += text.empty() ? " lacks " : " and ";
    text += word.is_of_receive() ? std::to_string(word.num_bytes) + " bytes from rank " : "room at rank ";
    text += std::to_string(word.peer);
  }
  auto const& title = flight_.title;
  return "operation " + std::to_string(title.seq) + " of " + title.verb + " on CUDA device " +
         std::to_string(title.device) + (title.channel < 0 ? "" : ", channel " + std::to_string(title.channel) + ",") +
         (text.empty() ? " is under way" : text);
}

}  // namespace headway::comm
