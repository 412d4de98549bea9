// SPDX-License-Identifier: Apache-2.0

// How the blocks of an all-to-all travel to the peers. A slot is memory for one block in the receiver's ring, and
// max_lag is the number of all-to-alls by which a rank may run ahead of its peers. With the defaults of GroupOptions:
//
//   block                          max_lag 0                     max_lag above 0
//   below 64 KiB (min_get_bytes)   into the slot                 into the slot
//   up to 256 KiB (slot_bytes)     read by the receiver          into the slot, or by a revocable RTS (see below)
//   larger                         read by the receiver          read by the receiver; the lag is lost
//
// A receiver reads a block from the sender's memory, which saves a copy. Where the transport cannot do that, a block
// that fits goes into the slot, and a larger one piecewise (rendezvous_protocol.cpp). Reading and piecewise transfer
// both start with an announcement (RTS, ready to send), and end only when the receiver has taken part. That is why a
// block above slot_bytes cannot lag.
//
// With max_lag above 0 a block that would fit into the slot is announced only if the slots of the whole ring would
// not stay in cache (get_footprint), since only then does the copy cost much. The sender must be able to go on
// without the receiver, so it may revoke the RTS: both claim one word by compare-and-swap, and the winner moves the
// block. Once an operation waits for nothing but open RTS, the sender waits rts_patience (50 us) for each started
// 256 KiB of the largest of their blocks, then revokes them: 150 us for a block of 600 KiB, with slots of 1 MiB.
//
// Invariant: whoever wins the claim moves the block, so it moves once. A sender that lost no longer tries to revoke,
// and waits until the receiver has read the block.

#include "channel/all_to_all_sender.hpp"

#include "system/small_copy.hpp"

namespace headway::comm {

namespace {

/// Blocks up to this size fit a notification of transport shm, behind a short header. Their slot needs no prefetch.
constexpr std::size_t kSmallBytes = 32;
/// The patience is rts_patience for each started unit of the largest block with an open RTS.
constexpr std::size_t kPatienceUnitBytes = 256 * 1024;

}  // namespace

AllToAllSender::AllToAllSender(ChannelContext& context, RendezvousProtocol& rendezvous, GroupOptions const& options,
                               int channel)
    : context_(context),
      rendezvous_(rendezvous),
      channel_(channel),
      min_get_bytes_(options.min_get_bytes),
      get_footprint_(options.get_footprint),
      rts_patience_(options.rts_patience) {}

void AllToAllSender::prepare(AllToAllArgs const& args, std::size_t slot) {
  std::uint64_t const offset = context_.layout().ring_slot(context_.rank(), channel_, slot);
  for (int peer = 0; peer < context_.size(); ++peer) {
    std::size_t const bytes = args.sends[static_cast<std::size_t>(peer)].size();
    if (peer == context_.rank() || bytes <= kSmallBytes || bytes > context_.layout().ring_slot_bytes()) continue;
    context_.endpoint().prepare({.peer = peer, .offset = offset}, MessageHeader::kShortBytes, bytes);
  }
}

bool AllToAllSender::post(AllToAllOperation& operation, int max_lag) {
  int const size = context_.size();
  if (operation.next_to_post < size - 1) {
    context_.endpoint().prepare({.peer = next_peer(operation)}, MessageHeader::kShortBytes, 0);
  }
  for (; operation.next_to_post < size - 1; ++operation.next_to_post) {
    if (!send_block(operation, next_peer(operation), max_lag)) return false;
  }
  context_.submit();  // Sends them before the own block is copied.
  auto const self = static_cast<std::size_t>(context_.rank());
  copy_bytes(operation.receives[self].data(), operation.sends[self].data(), operation.sends[self].size());
  return true;
}

bool AllToAllSender::send_block(AllToAllOperation& operation, int peer, int max_lag) {
  auto const block = operation.sends[static_cast<std::size_t>(peer)];
  if (!context_.rules().needs_message(block)) return true;
  std::uint64_t const seq = operation.seq();
  MessageHeader header{.size_bytes = block.size(),
                       .operation = static_cast<std::uint32_t>(seq),
                       .data_type = operation.data_type,
                       .verb = Verb::kAllToAll,
                       .busy_before_wait_us = operation.busy.before_wait_us,
                       .busy_after_wait_us = operation.busy.after_wait_us};
  bool const fits = fits_slot(block, peer);
  bool const uses_get =
      block.size() >= min_get_bytes_ && (max_lag == 0 || leaves_cache(operation)) && context_.gets_from(peer);
  if (!fits || uses_get) return send_rts(operation, peer, max_lag, header);
  if (!context_.put(peer, slot_at_peer(operation), header, block, tag_of(operation, 0))) return false;
  record_put(operation, peer);
  return true;
}

bool AllToAllSender::send_rts(AllToAllOperation& operation, int peer, int max_lag, MessageHeader header) {
  auto const block = operation.sends[static_cast<std::size_t>(peer)];
  bool const fits = fits_slot(block, peer);
  bool const is_revocable = fits && max_lag > 0;
  if (rendezvous_.is_full(peer)) return false;
  if (is_revocable) {
    header.kind = MessageKind::kRevocableRts;
  } else if (operation.is_blocking) {
    header.kind = MessageKind::kBlockingRts;
  }
  rendezvous_.prepare_rts(peer, block, header);
  if (!context_.put(peer, slot_at_peer(operation), header, {}, tag_of(operation, 0))) return false;
  operation.add_parts(1);
  auto const transfer = rendezvous_.rts_sent(peer, block, operation);
  if (is_revocable) operation.open_rts.push_back({.peer = peer, .transfer = transfer});
  if (!fits && max_lag > 0) ++context_.stats().lag_lost;
  return true;
}

bool AllToAllSender::leaves_cache(AllToAllOperation const& operation) const {
  std::size_t bytes = 0;
  for (auto const& block : operation.sends) bytes += block.size();
  bytes -= operation.sends[static_cast<std::size_t>(context_.rank())].size();
  return bytes * context_.layout().ring_depth() > get_footprint_;
}

void AllToAllSender::record_put(AllToAllOperation& operation, int peer) {
  if (context_.traits(peer).copies_at_put) return;
  AllToAllOperation::UnflushedPut const put{.peer = peer, .put_count = context_.endpoint().put_count(peer)};
  if (!is_flushed(put)) operation.unflushed.push_back(put);
}

Deadline AllToAllSender::revoke_overdue(AllToAllOperation& operation, Clock::time_point now) {
  auto& open_rts = operation.open_rts;
  std::erase_if(open_rts,
                [&](auto const& each) { return !each.is_revoked && !rendezvous_.is_open(each.peer, each.transfer); });
  put_revoked(operation);  // Their receivers wait for them, whatever else the operation waits for.
  bool const lacks_more = operation.pending_parts() > static_cast<int>(open_rts.size());
  if (open_rts.empty() || lacks_more) return Deadline::max();
  if (operation.lacks_only_rts_at == Clock::time_point()) operation.lacks_only_rts_at = now;
  std::size_t largest = 0;
  for (auto const& each : open_rts) {
    largest = std::max(largest, operation.sends[static_cast<std::size_t>(each.peer)].size());
  }
  auto const units =
      static_cast<int>((std::max<std::size_t>(largest, 1) + kPatienceUnitBytes - 1) / kPatienceUnitBytes);
  Deadline const due = operation.lacks_only_rts_at + units * rts_patience_;
  if (now >= due) revoke(operation);
  return open_rts.empty() ? Deadline::max() : std::max(now, due);
}

void AllToAllSender::revoke(AllToAllOperation& operation) {
  auto const word = context_.layout().ring_claim(context_.rank(), channel_, operation.slot);
  for (auto& each : operation.open_rts) {
    if (each.is_revoked || !context_.endpoint().claim(each.peer, word, operation.seq() + 1)) continue;
    rendezvous_.forget(each.peer, each.transfer);
    each.is_revoked = true;
    ++num_unsent_;
  }
  // The receiver is reading the blocks whose claim failed.
  std::erase_if(operation.open_rts, [](auto const& each) { return !each.is_revoked; });
  put_revoked(operation);
}

void AllToAllSender::put_revoked(AllToAllOperation& operation) {
  std::erase_if(operation.open_rts, [&](AllToAllOperation::Rts const& each) {
    if (!each.is_revoked) return false;
    auto const block = operation.sends[static_cast<std::size_t>(each.peer)];
    // No header: the receiver may be reading the RTS's header in this slot.
    Status const status = context_.endpoint().put({.peer = each.peer, .offset = slot_at_peer(operation)}, {}, block,
                                                  tag_of(operation, kRevokedFragment));
    if (!status.ok()) return false;
    context_.mark_put(each.peer, block.size());
    record_put(operation, each.peer);
    operation.part_done();
    ++context_.stats().rts_revoked;
    --num_unsent_;
    return true;
  });
}

}  // namespace headway::comm
