// Flight records of a group: completed and pending operations, now or when the group failed.

#include "group_impl.hpp"

#include <algorithm>
#include <utility>

namespace headway::comm {

FlightRecord GroupImpl::pending_flight_record(OperationState const& operation, FlightClock::Reading const& clock) {
  bool is_queued = false;
  auto const lacks = [&](int peer) { return pair_.lacks(peer, operation) || transfers_.takes_from(peer, operation); };
  auto const is_untaken = [&](int peer) {
    bool const waits_for_credit = pair_.has_queued(peer, operation);
    is_queued = is_queued || waits_for_credit;
    return waits_for_credit || pair_.has_unflushed(peer, operation) || transfers_.gives_to(peer, operation);
  };
  auto waiting_for = select_ranks(size_, lacks, is_untaken);
  auto record = make_flight_record(operation.flight.title, operation.flight.entry,
                                   is_queued ? FlightState::kQueued : FlightState::kPosted, clock);
  if (is_queued) record.posted = {};
  record.waiting_for = std::move(waiting_for);
  return record;
}

std::vector<FlightRecord> GroupImpl::pending_flight_records(FlightClock::Reading const& clock) {
  std::vector<FlightRecord> records;
  for (auto const& ring : rings_) ring->append_pending_flights(clock, records);
  for (auto const& operation : pair_operations_) records.push_back(pending_flight_record(*operation, clock));
  return records;
}

std::vector<FlightRecord> GroupImpl::all_flight_records() {
  if (!wire_.flight_recorder().is_on()) return {};
  auto const clock = wire_.flight_recorder().read_clock();
  std::vector<FlightRecord> records;
  for (auto const& ring : rings_) ring->append_completed_flights(clock, records);
  wire_.flight_recorder().append_completed(clock, records);
  if (auto* const companion = companion_.load()) companion->append_flights(clock, records);
  auto const pending = failed_ ? failed_records_ : pending_flight_records(clock);
  records.insert(records.end(), pending.begin(), pending.end());
  std::ranges::stable_sort(records, {}, &FlightRecord::started);
  return records;
}

void GroupImpl::note_failed_records() {
  auto const clock = wire_.flight_recorder().read_clock();
  failed_records_ = pending_flight_records(clock);
  for (auto& record : failed_records_) {
    record.state = FlightState::kFailed;
    record.completed = clock.time();
  }
}

std::vector<FlightRecord> GroupImpl::flight_records() {
  Visit visit(*this);
  return all_flight_records();
}

}  // namespace headway::comm
