// SPDX-License-Identifier: Apache-2.0

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
// Large blocks: the sender puts a header only, the RTS (ready to send), and the receiver reads the block from the
// sender's memory (rendezvous_protocol.cpp). With max_lag > 0 the RTS is revocable. Receiver and sender set the slot's
// claim word to t + 1; the first one moves the block. The sender claims it only when operation t waits for nothing but
// RTS, and `rts_patience` has passed.
//
// Invariants: every operation sends a tag to every peer, even for an empty block (the proof needs it).
//   Arrival is a mark per (operation, source), never a count over several operations; a repeated tag is only counted.
//   A header is compared with the expected operation, size and data type before its payload is used.
//   max_lag, RTS and revocations change who waits when and how bytes travel, never a result.
// Complexity: n - 1 messages per rank and operation; n * depth * (slot_bytes + 64) bytes of receive memory per channel.
// Source: Dichev et al., "Faster Distributed Inference-Only Recommender Systems via Bounded Lag Synchronous
// Collectives", arXiv 2512.19342, section III. Its k slots are too few: see docs/bounded_lag.md.
// Models: tests/model/bounded_lag.pml, tests/model/revocable_rts.pml. context_.rules() has the decisions that the proof
// needs (protocol_rules.hpp).

#include "channel/all_to_all_channel.hpp"

#include "system/small_copy.hpp"

#include <algorithm>

namespace headway::comm {

AllToAllChannel::AllToAllChannel(ChannelContext& context, RendezvousProtocol& rendezvous, GroupOptions const& options,
                                 int channel)
    : context_(context),
      rendezvous_(rendezvous),
      channel_(channel),
      max_lag_(options.max_lag),
      depth_(context.layout().ring_depth()),
      size_(static_cast<std::size_t>(context.size())),
      large_bytes_(std::min(options.min_get_bytes, context.layout().ring_slot_bytes() + 1)),
      sender_(context, rendezvous, options, channel),
      observers_(context, options, channel),
      arrivals_(depth_ * size_),
      revocations_(depth_ * size_) {}

std::shared_ptr<AllToAllOperation> AllToAllChannel::start(AllToAllArgs const& args, std::chrono::milliseconds timeout,
                                                          bool is_blocking) {
  auto const self = static_cast<std::size_t>(context_.rank());
  expects(args.sends.size() == size_ && args.receives.size() == size_,
          "all_to_all_v needs one block to send and one to receive for each rank");
  bool const has_capacities = !args.received_bytes.empty();
  expects(!has_capacities || args.received_bytes.size() == size_,
          "all_to_all_v: received_bytes needs one number for each rank");
  std::size_t const own_bytes = args.sends[self].size(), own_room = args.receives[self].size();
  expects(has_capacities ? own_bytes <= own_room : own_bytes == own_room,
          "all_to_all_v: the block to the own rank has another size than the one from it");
  if (may_post(num_started_)) sender_.prepare(args, started_slot_);  // The prefetch overlaps with the code below.
  auto operation = pool_.take();
  operation->begin(args, num_started_++, timeout, is_blocking);
  if (has_capacities) operation->shrink_receive(self, own_bytes);
  operation->slot = started_slot_;
  started_slot_ = next_slot(started_slot_);
  operation->has_large_blocks =
      std::ranges::any_of(args.receives, [&](auto const& block) { return block.size() >= large_bytes_; });
  num_with_large_blocks_ += operation->has_large_blocks ? 1 : 0;
  operation->add_parts(static_cast<int>(size_) - 1);  // Blocks to receive; each RTS adds one part.
  observers_.started(*operation);
  operations_.push_back(operation);
  if (!may_post(operation->seq())) ++context_.stats().queued;
  post_due();  // Before receive_block(), which may take long: the peers wait for these messages.
  if (operation->seq() >= num_posted_) observers_.queued(*operation);
  // Messages of faster peers may have arrived before the start.
  for (int source = 0; source < context_.size(); ++source) {
    if (has_arrived(*operation, source)) receive_block(*operation, source);
    bool const is_remote = source != context_.rank();
    auto const block = operation->receives[static_cast<std::size_t>(source)];
    if (is_remote && !context_.rules().needs_message(block)) operation->part_done();
  }
  return operation;
}

bool AllToAllChannel::may_post(std::uint64_t seq) const {
  return seq == num_posted_ && context_.rules().may_post(channel_, seq, num_completed_, max_lag_);
}

void AllToAllChannel::post_due() {
  while (num_posted_ < num_started_ && may_post(num_posted_)) {
    auto& operation = *operations_[num_posted_ - num_completed_];
    if (!sender_.post(operation, max_lag_)) break;
    observers_.posted(operation);  // After the messages, which the peers wait for.
    ++num_posted_;
  }
}

Deadline AllToAllChannel::revoke_rts(Clock::time_point now) {
  Deadline next = Deadline::max();
  for (auto const& operation : operations_) {
    if (operation->seq() >= num_posted_) break;
    next = std::min(next, sender_.revoke_overdue(*operation, now));
  }
  return next;
}

void AllToAllChannel::arrived(int source, Tag tag) {
  // After a disagreement the group is about to fail. What follows, such as the revocation of the block, is not used.
  if (!context_.error().empty()) [[unlikely]] {
    return;
  }
  std::uint64_t const seq = context_.rules().operation_of(tag, source, num_completed_ + depth_ / 2);
  if (seq < num_completed_) {
    ++context_.peer_stats(source).repeated_fragments;
    return;
  }
  if (seq >= num_completed_ + depth_) {
    return context_.report_error("rank " + std::to_string(source) + " sent operation " + std::to_string(seq) +
                                 " of all_to_all_v to rank " + std::to_string(context_.rank()) +
                                 ", which expects none after " + std::to_string(num_completed_ + depth_ - 1));
  }
  if (tag.fragment == kRevokedFragment) return revocation_arrived(source, seq);
  if (!mark(arrivals_, seq, source)) return;
  if (seq < num_started_) return receive_block(*operations_[seq - num_completed_], source);
  num_seen_early_ = std::max(num_seen_early_, seq + 1);
}

bool AllToAllChannel::mark(std::vector<std::uint64_t>& marks, std::uint64_t seq, int source) {
  auto& marked = marks[slot_of(seq) * size_ + static_cast<std::size_t>(source)];
  if (marked == seq + 1) {
    ++context_.peer_stats(source).repeated_fragments;
    return false;
  }
  marked = seq + 1;
  return true;
}

void AllToAllChannel::receive_block(AllToAllOperation& operation, int source) {
  std::uint64_t const slot = context_.layout().ring_slot(source, channel_, operation.slot);
  MessageHeader const header = MessageHeader::read(context_.received_at(slot));
  auto const room = operation.receives[static_cast<std::size_t>(source)].size();
  bool const fits = operation.received_bytes.empty() ? header.size_bytes == room : header.size_bytes <= room;
  if (!fits || header.data_type != operation.data_type ||
      header.operation != static_cast<std::uint32_t>(operation.seq()) || header.verb != Verb::kAllToAll) [[unlikely]] {
    return report_disagreement(operation, source, header);
  }
  if (!operation.received_bytes.empty()) operation.shrink_receive(static_cast<std::size_t>(source), header.size_bytes);
  operation.last_arrival = source;
  observers_.arrived(operation, source, header);
  if (header.kind == MessageKind::kEager) return copy_out(operation, source);
  if (context_.rules().needs_claim(header.kind)) {
    auto const word = context_.layout().ring_claim(source, channel_, operation.slot);
    if (!context_.endpoint().claim(context_.rank(), word, operation.seq() + 1)) {
      if (is_marked(revocations_, operation, source)) copy_out(operation, source);
      return;
    }
  }
  auto const output = operation.receives[static_cast<std::size_t>(source)];
  rendezvous_.receive(source, header, output, operation, operation.is_blocking);
}

void AllToAllChannel::revocation_arrived(int source, std::uint64_t seq) {
  if (!mark(revocations_, seq, source) || seq >= num_started_) return;
  auto& operation = *operations_[seq - num_completed_];
  // If this rank has seen the RTS, its claim failed, so the block was left in the slot.
  bool const claim_failed = has_arrived(operation, source) && context_.rules().needs_claim(MessageKind::kRevocableRts);
  if (claim_failed) copy_out(operation, source);
}

void AllToAllChannel::copy_out(AllToAllOperation& operation, int source) {
  std::uint64_t const slot = context_.layout().ring_slot(source, channel_, operation.slot);
  auto const output = operation.receives[static_cast<std::size_t>(source)];
  copy_bytes(output.data(), context_.received_at(slot + kHeaderBytes), output.size());
  operation.part_done();
}

bool AllToAllChannel::is_complete(AllToAllOperation const& operation) const {
  if (operation.pending_parts() != 0 || operation.seq() >= num_posted_) return false;
  return sender_.all_flushed(operation);
}

void AllToAllChannel::progress(std::vector<std::shared_ptr<OperationState>>& completed) {
  for (;;) {
    // Does nothing, except in a build of the tests that breaks the rule of completion in order.
    context_.rules().complete_ahead(
        operations_, [this](AllToAllOperation const& operation) { return is_complete(operation); }, completed);
    post_due();
    if (operations_.empty() || !is_complete(*operations_.front())) return;
    complete_front(completed);
  }
}

void AllToAllChannel::complete_front(std::vector<std::shared_ptr<OperationState>>& completed) {
  auto operation = std::move(operations_.front());
  operations_.pop_front();
  ++num_completed_;
  front_slot_ = next_slot(front_slot_);
  num_with_large_blocks_ -= operation->has_large_blocks ? 1 : 0;
  observers_.completed(*operation, lag_of(*operation));
  operation->finish({});
  completed.push_back(std::move(operation));
}

Deadline AllToAllChannel::earliest_deadline(Clock::time_point now) const {
  Deadline earliest = Deadline::max();
  for (auto const& operation : operations_) earliest = std::min(earliest, operation->deadline(now));
  return earliest;
}

bool AllToAllChannel::needs(int peer) const {
  if (operations_.empty()) return false;
  auto const& operation = *operations_.back();
  if (!has_arrived(operation, peer)) return true;
  return num_posted_ < num_started_ || sender_.has_unflushed(operation, peer);
}

void AllToAllChannel::cancel(Status const& status, std::vector<std::shared_ptr<OperationState>>& completed) {
  for (auto& operation : operations_) {
    operation->finish(status);
    completed.push_back(std::move(operation));
  }
  operations_.clear();
  num_with_large_blocks_ = 0;
  sender_.cancel();
}

}  // namespace headway::comm
