// All-to-all over receive rings: no barrier, no acknowledgement.
//
// Idea: a rank keeps one ring of `depth` slots per source. Operation t puts a block into slot t % depth at each peer
// and makes a tag visible there. A rank posts t only after it completed (copied out) all operations up to
// t - max_lag - 1. With depth = 2 * (max_lag_limit + 1), the slot it writes is then free. Operations complete in order.
//
// Example: max_lag = 1, depth = 4. A posts 4 into slot 0 of B, over its own block of operation 0.
//   A completed 2, so B posted 2, so B completed 0: slot 0 is free.
//   If depth were 3, A could post 3 into slot 0 when B has only posted 1 and not copied out 0.
//
// Large blocks: the sender puts a header only, the offer, and the receiver reads the block from the sender's memory
// (transfer.cpp). With max_lag > 0 the offer is revocable. Receiver and sender claim the slot's word for t + 1; the
// first one moves the block. The sender claims it only when operation t waits for nothing but offers, and
// `offer_patience` has passed.
//
// Invariants: every operation sends a tag to every peer, even for an empty block (the proof needs it).
//   Arrival is a mark per (operation, source), never a count over several operations; a repeated tag is only counted.
//   A header is compared with the expected operation, size and data type before its payload is used.
//   The bound, offers and revocations change who waits when and how bytes travel, never a result.
// Complexity: n - 1 messages per rank and operation; n * depth * (slot_bytes + 64) bytes of receive memory per channel.
// Source: Dichev et al., "Faster Distributed Inference-Only Recommender Systems via Bounded Lag Synchronous
// Collectives", arXiv 2512.19342, section III. Its k slots are too few: see docs/bounded_lag.md.
// Models: tests/model/bounded_lag.pml, tests/model/revocable_offer.pml.

#include "ring_channel.hpp"

#include "small_copy.hpp"

#include <algorithm>

namespace headway::comm {

namespace {

constexpr std::uint8_t kRevokedFragment = 1;  ///< Fragment of a tag: the block of a revoked offer is in the slot.
constexpr std::size_t kSmallBytes = 32;       ///< The notification itself can carry such a block, so no prefetch.
constexpr std::size_t kMaxPooled = 64;        ///< Completed operations kept for reuse.
/// offer_patience counts once for each started unit of the largest offered block.
constexpr std::size_t kPatienceUnitBytes = 256 * 1024;

double now_s() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

std::int64_t now_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(Clock::now().time_since_epoch()).count();
}

}  // namespace

RingChannel::RingChannel(Wire& wire, Transfers& transfers, GroupOptions const& options, int ring)
    : wire_(wire),
      transfers_(transfers),
      ring_(ring),
      max_lag_(options.max_lag),
      depth_(wire.layout().ring_depth()),
      size_(static_cast<std::size_t>(wire.size())),
      pull_bytes_(options.pull_bytes),
      offer_footprint_(options.offer_footprint),
      offer_patience_(options.offer_patience),
      arrivals_(depth_ * size_),
      revocations_(depth_ * size_),
      num_arrivals_(size_),
      flights_(options.flight_records) {
  if (options.adapt_lag) advisor_ = std::make_unique<LagAdvisor>(wire.size(), options.max_lag_limit);
}

std::shared_ptr<RingOperation> RingChannel::recycled_operation() {
  // Operations mostly end in the order of their starts. If the oldest is in use, the others probably are too. Searching
  // on would make many starts in a row quadratic.
  if (pool_.empty() || pool_[oldest_pooled_].use_count() != 1) {
    auto fresh = std::make_shared<RingOperation>();
    if (pool_.size() < kMaxPooled) {
      pool_.insert(pool_.begin() + static_cast<std::ptrdiff_t>(oldest_pooled_), std::move(fresh));
    } else {
      pool_[oldest_pooled_] = std::move(fresh);  // The replaced object now belongs to its user alone.
    }
  }
  auto const& operation = pool_[oldest_pooled_];
  oldest_pooled_ = oldest_pooled_ + 1 < pool_.size() ? oldest_pooled_ + 1 : 0;
  return operation;
}

std::shared_ptr<RingOperation> RingChannel::start(AllToAllArgs const& args, std::chrono::milliseconds timeout,
                                                  bool is_attended) {
  auto const self = static_cast<std::size_t>(wire_.rank());
  expects(args.sends.size() == size_ && args.receives.size() == size_,
          "all_to_all_v needs one block to send and one to receive for each rank");
  expects(args.sends[self].size() == args.receives[self].size(),
          "all_to_all_v: the block to the own rank has another size than the one from it");
  if (may_post(num_started_)) prepare_payloads(args);  // The prefetch overlaps with the code below.
  auto operation = recycled_operation();
  operation->reset(Verb::kAllToAll, num_started_++, timeout);
  operation->sends.assign(args.sends.begin(), args.sends.end());
  operation->receives.assign(args.receives.begin(), args.receives.end());
  operation->data_type = args.data_type;
  operation->is_attended = is_attended;
  operation->ring = ring_;
  operation->slot = started_slot_;
  started_slot_ = next_slot(started_slot_);
  operation->next_to_post = 0;
  operation->unflushed.clear();
  operation->offers.clear();
  operation->lacks_only_offers_at = Clock::time_point();
  operation->last_arrival = -1;
  std::size_t const large = std::min(pull_bytes_, wire_.layout().ring_slot_bytes() + 1);
  operation->has_large_blocks =
      std::any_of(args.receives.begin(), args.receives.end(), [&](auto const& block) { return block.size() >= large; });
  num_with_large_blocks_ += operation->has_large_blocks ? 1 : 0;
  operation->add_parts(static_cast<int>(size_) - 1);  // Blocks to receive; each offer adds one part.
  if (advisor_) {
    starter_ = std::this_thread::get_id();
    operation->busy = busy_clock_.exchange_started(now_us());
    advisor_->add(operation->number(), wire_.rank(), operation->busy);
  }
  operation->started_s = trace_capacity_ != 0 ? now_s() : 0;
  if (flights_.is_on()) record_sizes(*operation, args);
  operations_.push_back(operation);
  if (!may_post(operation->number())) ++wire_.stats().queued;
  post_due();  // Before answers to peers: the peers of our offers wait for these.
  // Messages of faster peers may have arrived before the start.
  for (int source = 0; source < wire_.size(); ++source) {
    if (has_arrived(*operation, source)) receive_block(*operation, source);
    bool const is_empty = source != wire_.rank() && operation->receives[static_cast<std::size_t>(source)].empty();
    if (is_empty && wire_.plants(Mutant::kNoTagForEmpty)) operation->part_done();
  }
  return operation;
}

bool RingChannel::may_post(std::uint64_t number) const {
  return number == num_posted_ && number <= num_completed_ + num_early_ + static_cast<std::uint64_t>(max_lag_);
}

void RingChannel::post_due() {
  while (num_posted_ < num_started_ && may_post(num_posted_)) {
    if (!post(*operations_[num_posted_ - num_completed_])) break;
  }
}

bool RingChannel::post(RingOperation& operation) {
  auto const size = static_cast<int>(size_);
  if (operation.next_to_post < size - 1) {
    wire_.endpoint().prepare({.peer = next_peer(operation)}, MessageHeader::kShortBytes, 0);
  }
  for (; operation.next_to_post < size - 1; ++operation.next_to_post) {
    if (!send_block(operation, next_peer(operation))) return false;
  }
  wire_.submit();  // Sends them before the own block is copied.
  auto const self = static_cast<std::size_t>(wire_.rank());
  copy_bytes(operation.receives[self].data(), operation.sends[self].data(), operation.sends[self].size());
  if (trace_capacity_ != 0) operation.posted_s = now_s();
  if (flights_.is_on()) record_post(operation);  // After the messages, which the peers wait for.
  ++num_posted_;
  return true;
}

void RingChannel::prepare_payloads(AllToAllArgs const& args) {
  std::uint64_t const slot = wire_.layout().ring_slot(wire_.rank(), ring_, started_slot_);
  for (int peer = 0; peer < wire_.size(); ++peer) {
    std::size_t const bytes = args.sends[static_cast<std::size_t>(peer)].size();
    if (peer == wire_.rank() || bytes <= kSmallBytes || bytes > wire_.layout().ring_slot_bytes()) continue;
    wire_.endpoint().prepare({.peer = peer, .offset = slot}, MessageHeader::kShortBytes, bytes);
  }
}

bool RingChannel::send_block(RingOperation& operation, int peer) {
  auto const block = operation.sends[static_cast<std::size_t>(peer)];
  if (block.empty() && wire_.plants(Mutant::kNoTagForEmpty)) return true;
  std::uint64_t const number = operation.number();
  MessageHeader header{.size_bytes = block.size(),
                       .operation = static_cast<std::uint32_t>(number),
                       .data_type = operation.data_type,
                       .verb = Verb::kAllToAll,
                       .busy_before_wait_us = operation.busy.before_wait_us,
                       .busy_after_wait_us = operation.busy.after_wait_us};
  bool const fits = fits_slot(block, peer);
  bool const pull = block.size() >= pull_bytes_ && (max_lag_ == 0 || leaves_cache(operation)) && wire_.pulls_from(peer);
  if (!fits || pull) return offer(operation, peer, header);
  std::uint64_t const slot = wire_.layout().ring_slot(wire_.rank(), ring_, operation.slot);
  if (!wire_.put(peer, slot, header, block, tag_of(operation, 0))) return false;
  note_put(operation, peer);
  return true;
}

void RingChannel::note_put(RingOperation& operation, int peer) {
  if (wire_.traits(peer).copies_at_put) return;
  RingOperation::UnflushedPut const put{.peer = peer, .put_count = wire_.endpoint().put_count(peer)};
  if (!is_flushed(put)) operation.unflushed.push_back(put);
}

bool RingChannel::is_flushed(RingOperation::UnflushedPut const& put) const {
  return wire_.endpoint().flushed(put.peer) >= put.put_count;
}

bool RingChannel::offer(RingOperation& operation, int peer, MessageHeader header) {
  auto const block = operation.sends[static_cast<std::size_t>(peer)];
  bool const fits = fits_slot(block, peer);
  bool const is_revocable = fits && max_lag_ > 0;
  if (transfers_.is_full(peer)) return false;
  if (is_revocable) {
    header.kind = MessageKind::kRevocableOffer;
  } else if (operation.is_attended) {
    header.kind = MessageKind::kAttendedOffer;
  }
  transfers_.prepare_offer(peer, block, header);
  std::uint64_t const slot = wire_.layout().ring_slot(wire_.rank(), ring_, operation.slot);
  if (!wire_.put(peer, slot, header, {}, tag_of(operation, 0))) return false;
  operation.add_parts(1);
  auto const transfer = transfers_.accepted(peer, block, operation);
  if (is_revocable) operation.offers.push_back({.peer = peer, .transfer = transfer});
  if (!fits && max_lag_ > 0) ++wire_.stats().lag_lost;
  return true;
}

bool RingChannel::leaves_cache(RingOperation const& operation) const {
  std::size_t bytes = 0;
  for (auto const& block : operation.sends) bytes += block.size();
  bytes -= operation.sends[static_cast<std::size_t>(wire_.rank())].size();
  return bytes * depth_ > offer_footprint_;
}

Deadline RingChannel::revoke_offers(Clock::time_point now) {
  Deadline next = Deadline::max();
  for (auto const& operation : operations_) {
    if (operation->number() >= num_posted_) break;
    auto& offers = operation->offers;
    std::erase_if(offers,
                  [&](auto const& each) { return !each.is_revoked && !transfers_.is_open(each.peer, each.transfer); });
    bool const lacks_more = operation->pending_parts() > static_cast<int>(offers.size());
    if (offers.empty() || lacks_more) continue;
    if (operation->lacks_only_offers_at == Clock::time_point()) operation->lacks_only_offers_at = now;
    std::size_t largest = 0;
    for (auto const& each : offers) {
      largest = std::max(largest, operation->sends[static_cast<std::size_t>(each.peer)].size());
    }
    auto const units = static_cast<int>(largest / kPatienceUnitBytes + 1);
    Deadline const due = operation->lacks_only_offers_at + units * offer_patience_;
    if (now >= due) revoke(*operation);
    if (!offers.empty()) next = std::min(next, std::max(now, due));
  }
  return next;
}

void RingChannel::revoke(RingOperation& operation) {
  std::erase_if(operation.offers, [&](RingOperation::Offer& each) {
    if (!each.is_revoked) {
      auto const word = wire_.layout().ring_claim(wire_.rank(), ring_, operation.slot);
      // If the claim fails, the receiver is reading the block.
      if (!wire_.endpoint().claim(each.peer, word, operation.number() + 1)) return true;
      transfers_.forget(each.peer, each.transfer);
      each.is_revoked = true;
      ++num_unsent_;
    }
    auto const block = operation.sends[static_cast<std::size_t>(each.peer)];
    std::uint64_t const slot = wire_.layout().ring_slot(wire_.rank(), ring_, operation.slot);
    // No header: the receiver may be reading the offer's header in this slot.
    Status const status =
        wire_.endpoint().put({.peer = each.peer, .offset = slot}, {}, block, tag_of(operation, kRevokedFragment));
    if (!status.ok()) return false;
    wire_.mark_put(each.peer, block.size());
    note_put(operation, each.peer);
    operation.part_done();
    ++wire_.stats().offers_revoked;
    --num_unsent_;
    return true;
  });
}

void RingChannel::arrived(int source, Tag tag) {
  std::uint64_t const number = wire_.plants(Mutant::kCountArrivals) ? num_arrivals_[static_cast<std::size_t>(source)]++
                                                                    : widen(tag.operation, num_completed_ + depth_ / 2);
  if (number < num_completed_) {
    ++wire_.peer_stats(source).repeated_fragments;
    return;
  }
  if (number >= num_completed_ + depth_) {
    return wire_.report_error("rank " + std::to_string(source) + " sent operation " + std::to_string(number) +
                              " of all_to_all_v to rank " + std::to_string(wire_.rank()) +
                              ", which expects none after " + std::to_string(num_completed_ + depth_ - 1));
  }
  if (tag.fragment == kRevokedFragment) return revocation_arrived(source, number);
  if (!mark(arrivals_, number, source)) return;
  if (number < num_started_) receive_block(*operations_[number - num_completed_], source);
}

bool RingChannel::mark(std::vector<std::uint64_t>& marks, std::uint64_t number, int source) {
  auto& marked = marks[slot_of(number) * size_ + static_cast<std::size_t>(source)];
  if (marked == number + 1) {
    ++wire_.peer_stats(source).repeated_fragments;
    return false;
  }
  marked = number + 1;
  return true;
}

void RingChannel::receive_block(RingOperation& operation, int source) {
  std::uint64_t const slot = wire_.layout().ring_slot(source, ring_, operation.slot);
  MessageHeader const header = MessageHeader::read(wire_.landed(slot));
  auto const output = operation.receives[static_cast<std::size_t>(source)];
  if (header.size_bytes != output.size() || header.data_type != operation.data_type ||
      header.operation != static_cast<std::uint32_t>(operation.number()) || header.verb != Verb::kAllToAll)
      [[unlikely]] {
    return report_disagreement(operation, source, header);
  }
  auto& stats = wire_.peer_stats(source);
  ++stats.messages_received;
  stats.bytes_received += output.size();
  operation.last_arrival = source;
  if (advisor_) advisor_->add(operation.number(), source, {header.busy_before_wait_us, header.busy_after_wait_us});
  if (header.kind == MessageKind::kEager) return copy_out(operation, source);
  if (header.kind == MessageKind::kRevocableOffer && !wire_.plants(Mutant::kPullUnclaimed)) {
    auto const word = wire_.layout().ring_claim(source, ring_, operation.slot);
    if (!wire_.endpoint().claim(wire_.rank(), word, operation.number() + 1)) {
      if (is_marked(revocations_, operation, source)) copy_out(operation, source);
      return;
    }
  }
  transfers_.take(source, header, output, operation, operation.is_attended);
}

void RingChannel::revocation_arrived(int source, std::uint64_t number) {
  if (!mark(revocations_, number, source) || number >= num_started_) return;
  auto& operation = *operations_[number - num_completed_];
  // If this rank has seen the offer, its claim failed, so the block was left in the slot.
  if (has_arrived(operation, source) && !wire_.plants(Mutant::kPullUnclaimed)) copy_out(operation, source);
}

void RingChannel::copy_out(RingOperation& operation, int source) {
  std::uint64_t const slot = wire_.layout().ring_slot(source, ring_, operation.slot);
  auto const output = operation.receives[static_cast<std::size_t>(source)];
  copy_bytes(output.data(), wire_.landed(slot + kHeaderBytes), output.size());
  operation.part_done();
}

bool RingChannel::is_complete(RingOperation const& operation) const {
  if (operation.pending_parts() != 0 || operation.number() >= num_posted_) return false;
  return std::ranges::all_of(operation.unflushed, [&](auto const& put) { return is_flushed(put); });
}

void RingChannel::progress(std::vector<std::shared_ptr<OperationState>>& completed) {
  for (;;) {
    if (wire_.plants(Mutant::kCompleteOutOfOrder)) complete_early(completed);
    post_due();
    if (operations_.empty() || !is_complete(*operations_.front())) return;
    complete_front(completed);
  }
}

void RingChannel::complete_front(std::vector<std::shared_ptr<OperationState>>& completed) {
  auto operation = std::move(operations_.front());
  operations_.pop_front();
  auto const lag = static_cast<std::size_t>(num_posted_ - operation->number() - 1);
  auto& stats = wire_.stats();
  if (stats.lag_histogram.size() <= lag) stats.lag_histogram.resize(lag + 1);
  ++stats.lag_histogram[lag];
  ++stats.operations;
  ++num_completed_;
  front_slot_ = next_slot(front_slot_);
  num_with_large_blocks_ -= operation->has_large_blocks ? 1 : 0;
  if (advisor_) advisor_->completed(operation->number());
  if (trace_capacity_ != 0) record_trace(*operation, static_cast<int>(lag));
  if (flights_.is_on()) record_completion(*operation);
  if (operation->done()) {  // complete_early() has finished it.
    --num_early_;
    return;
  }
  operation->finish({});
  completed.push_back(std::move(operation));
}

void RingChannel::complete_early(std::vector<std::shared_ptr<OperationState>>& completed) {
  for (auto const& operation : operations_) {
    if (operation->done() || !is_complete(*operation)) continue;
    operation->finish({});
    ++num_early_;
    completed.push_back(operation);
  }
}

void RingChannel::waited(RingOperation& operation, Clock::time_point from) {
  double const seconds = std::chrono::duration<double>(Clock::now() - from).count();
  auto const lag = static_cast<std::size_t>(num_posted_ - operation.number() - 1);
  auto& stats = wire_.stats();
  if (stats.wait_s_by_lag.size() <= lag) stats.wait_s_by_lag.resize(lag + 1);
  stats.wait_s_by_lag[lag] += seconds;
  if (operation.last_arrival < 0) return;
  auto& peer = wire_.peer_stats(operation.last_arrival);
  peer.wait_s += seconds;
  ++peer.waits;
}

void RingChannel::wait_began(int ring) {
  if (ring == ring_) {
    busy_clock_.wait_began(now_us());
  } else if (starter_ == std::this_thread::get_id()) {
    busy_clock_.pause_began(now_us());
  }
}

void RingChannel::wait_ended(int ring) {
  if (ring == ring_ || starter_ == std::this_thread::get_id()) busy_clock_.wait_ended(now_us());
}

int RingChannel::recommended_max_lag() const {
  expects(advisor_ != nullptr, "recommended_max_lag needs a group with adapt_lag");
  return advisor_->advice();
}

Deadline RingChannel::earliest_deadline(Clock::time_point now) const {
  Deadline earliest = Deadline::max();
  for (auto const& operation : operations_) earliest = std::min(earliest, operation->deadline(now));
  return earliest;
}

bool RingChannel::needs(int peer) const {
  if (operations_.empty()) return false;
  auto const& operation = *operations_.back();
  if (!has_arrived(operation, peer)) return true;
  return num_posted_ < num_started_ || std::ranges::any_of(operation.unflushed, [&](auto const& put) {
           return put.peer == peer && !is_flushed(put);
         });
}

void RingChannel::cancel(Status const& status, std::vector<std::shared_ptr<OperationState>>& completed) {
  for (auto& operation : operations_) {
    operation->finish(status);
    completed.push_back(std::move(operation));
  }
  operations_.clear();
  num_with_large_blocks_ = 0;
  num_unsent_ = 0;
}

void RingChannel::set_trace_capacity(std::size_t capacity) {
  trace_capacity_ = capacity;
  trace_.clear();
  trace_.reserve(capacity);
}

std::vector<TraceEvent> RingChannel::drain_trace() { return std::exchange(trace_, {}); }

void RingChannel::record_sizes(RingOperation const& operation, AllToAllArgs const& args) {
  flights_[operation.number()] = {
      .input_bytes = total_bytes(args.sends), .output_bytes = total_bytes(args.receives), .data_type = args.data_type};
}

void RingChannel::record_post(RingOperation const& operation) {
  if (operation.number() < flights_.first(num_started_)) return;
  auto& flight = flights_[operation.number()];
  flight.posted = FlightClock::ticks();
  if (flight.started == 0) flight.started = flight.posted;
}

void RingChannel::record_completion(RingOperation const& operation) {
  if (operation.number() < flights_.first(num_started_)) return;
  auto& flight = flights_[operation.number()];
  // An attended operation mostly completes right after it was posted. Reading the clock would take longer than the
  // wait.
  flight.completed = operation.is_attended ? flight.posted : FlightClock::ticks();
}

void RingChannel::note_started(RingOperation const& operation) {
  auto& flight = flights_[operation.number()];
  if (flight.started == 0) flight.started = FlightClock::ticks();
}

void RingChannel::note_completed(RingOperation const& operation) {
  if (operation.number() >= flights_.first(num_started_)) flights_[operation.number()].completed = FlightClock::ticks();
}

void RingChannel::record_trace(RingOperation const& operation, int lag) {
  if (trace_.size() >= trace_capacity_ || operation.started_s == 0) return;
  trace_.push_back({.number = operation.number(),
                    .channel = ring_,
                    .started_s = operation.started_s,
                    .posted_s = operation.posted_s,
                    .completed_s = now_s(),
                    .bytes_sent = total_bytes(operation.sends),
                    .bytes_received = total_bytes(operation.receives),
                    .last_peer = operation.last_arrival,
                    .lag = lag});
}

}  // namespace headway::comm
