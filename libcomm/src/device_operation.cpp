#include "device_operation.hpp"

#include <algorithm>

namespace headway::comm {

bool DeviceOperationImpl::done() {
  nvlink::ContextScope const scope(*context_);
  CUresult const result = context_->call().event_query(completion_.get());
  if (result == CUDA_ERROR_NOT_READY) return false;
  context_->check(result, "cuEventQuery");
  if (!is_good_ && first_failure().ok()) is_good_ = true;  // A later failure does not matter.
  return true;
}

Status DeviceOperationImpl::status() { return is_good_ ? Status() : first_failure(); }

Status DeviceOperationImpl::first_failure() const {
  if (failure_->is_set.load(std::memory_order_acquire)) return failure_->status;
  for (auto const& word : awaited_) {
    if (!word.link->peer_has_failed()) continue;
    return {StatusCode::kAborted, "rank " + std::to_string(word.peer) + " failed, and " + describe_missing()};
  }
  return {};
}

void DeviceOperationImpl::join(DeviceStream stream) {
  nvlink::ContextScope const scope(*context_);
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
  return "operation " + std::to_string(title.number) + " of " + title.verb + " on CUDA device " +
         std::to_string(title.device) + (title.channel < 0 ? "" : ", channel " + std::to_string(title.channel) + ",") +
         (text.empty() ? " is under way" : text);
}

}  // namespace headway::comm
