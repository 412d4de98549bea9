// SPDX-License-Identifier: Apache-2.0

// The calls of a group. Each checks its arguments, takes the lock, describes the operation as messages to and from
// peers, and leaves the rest to the channels (group_channels.cpp) and to the core (group_core.cpp).
//
// An all-to-all has a protocol of its own (all_to_all_channel.cpp). All other collectives are plain messages between
// the rank and its peers, without ranks that forward. With R = 4 ranks and root 1:
//
//   broadcast    rank 1 sends its block three times          the others receive once
//   gather       rank 1 receives three blocks                the others send once
//   scatter      rank 1 sends three different blocks         the others receive once
//   all_gather   every rank sends its block three times and receives three
//   barrier      like all_gather, with messages of 0 bytes
//
// Invariants:
// - Wrong arguments throw before anything is sent, so the group goes on.
// - The numbers of collectives count the calls on a rank. All ranks call them in the same order, so equal numbers
//   mean the same call; the receiver compares verb and root all the same (P2PChannel).
// - A block of a rank for itself is copied at once, and never becomes a message.

#include "group/group_impl.hpp"

#include "group/collective.hpp"

#include <utility>

namespace headway::comm {

GroupImpl::GroupImpl(std::unique_ptr<Endpoint> endpoint, GroupOptions options, ReceiveLayout layout,
                     std::shared_ptr<ProgressThread> progress_thread, ConnectionInfo connection_info,
                     ProtocolRules const& rules)
    : admin_(core_, endpoint->size()),
      monitor_(core_, std::move(connection_info)),
      core_(std::move(endpoint), std::move(options), layout, std::move(progress_thread), rules) {}

OperationPtr GroupImpl::all_to_all_v(AllToAllArgs const& args) {
  ProgressLock const lock(core_);
  return start_all_to_all_v(args, false);
}

Status GroupImpl::all_to_all_v_and_wait(AllToAllArgs const& args) {
  ProgressLock lock(core_);
  auto const operation = start_all_to_all_v(args, true);
  return core_.wait(lock, *operation, std::nullopt);
}

std::shared_ptr<AllToAllOperation> GroupImpl::start_all_to_all_v(AllToAllArgs const& args, bool is_blocking) {
  core_.throw_if_failed();
  core_.expect_channel(args.channel, "all_to_all_v");
  auto operation = core_.channels().all_to_all(args.channel).start(args, core_.timeout(), is_blocking);
  core_.complete_all_to_alls();
  return operation;
}

OperationPtr GroupImpl::finish_start(std::shared_ptr<OperationState> operation) {
  core_.channels().finish_start(operation);
  core_.check_failures();
  return operation;
}

OperationPtr GroupImpl::send(std::span<std::byte const> block, int peer, std::uint64_t match, DataType type) {
  core_.expect_peer(peer, "send");
  expects(peer != rank(), "send: a rank cannot send to itself");
  expects(match >> 63 == 0, "send: match must be below 2^63");  // Bit 63 marks the messages of collectives.
  ProgressLock const lock(core_);
  core_.throw_if_failed();
  auto& channels = core_.channels();
  FlightTitle const title{.verb = "send", .seq = core_.context().flight_recorder().next_send(peer), .peer = peer};
  auto operation = channels.make_operation(Verb::kSend, channels.next_message_seq(), core_.timeout(),
                                           {title, {.input_bytes = block.size(), .data_type = type}});
  channels.p2p().send({.operation = operation, .peer = peer, .match = {match}, .data_type = type}, block);
  return finish_start(std::move(operation));
}

OperationPtr GroupImpl::receive(std::span<std::byte> block, int peer, std::uint64_t match, DataType type) {
  core_.expect_peer(peer, "receive");
  expects(peer != rank(), "receive: a rank cannot receive from itself");
  return start_receive(block, peer, match, type);
}

OperationPtr GroupImpl::receive_any(std::span<std::byte> block, std::uint64_t match, DataType type) {
  return start_receive(block, -1, match, type);
}

OperationPtr GroupImpl::start_receive(std::span<std::byte> block, int peer, std::uint64_t match, DataType type) {
  expects(match >> 63 == 0, "receive: match must be below 2^63");
  ProgressLock const lock(core_);
  core_.throw_if_failed();
  auto& channels = core_.channels();
  FlightTitle const title{.verb = peer < 0 ? "receive_any" : "receive",
                          .seq = core_.context().flight_recorder().next_receive(peer),
                          .peer = peer};
  // Verb::kSend stands for a single message, sent or received.
  auto operation = channels.make_operation(Verb::kSend, channels.next_message_seq(), core_.timeout(),
                                           {title, {.output_bytes = block.size(), .data_type = type}});
  channels.p2p().receive({.operation = operation, .peer = peer, .match = {match}, .data_type = type}, block);
  return finish_start(std::move(operation));
}

OperationPtr GroupImpl::broadcast(std::span<std::byte> block, int root, DataType type) {
  core_.expect_peer(root, "broadcast");
  ProgressLock const lock(core_);
  core_.throw_if_failed();
  Collective const collective(core_.channels(), Verb::kBroadcast, root, core_.timeout(),
                              {.input_bytes = block.size(), .output_bytes = block.size(), .data_type = type});
  if (rank() == root) {
    collective.send_to_all(block);
  } else {
    collective.receive(root, block);
  }
  return finish_start(collective.operation());
}

OperationPtr GroupImpl::gather(std::span<std::byte const> block, std::span<std::span<std::byte> const> receives,
                               int root, DataType type) {
  core_.expect_peer(root, "gather");
  ProgressLock const lock(core_);
  if (rank() == root) {
    expects(receives.size() == static_cast<std::size_t>(size()), "gather: the root needs one output for each rank");
    copy_own_block(block, receives[static_cast<std::size_t>(rank())], "gather");
  }
  core_.throw_if_failed();
  Collective const collective(core_.channels(), Verb::kGather, root, core_.timeout(),
                              {.input_bytes = block.size(), .output_bytes = total_bytes(receives), .data_type = type});
  if (rank() == root) {
    collective.receive_from_all(receives);
  } else {
    collective.send(root, block);
  }
  return finish_start(collective.operation());
}

OperationPtr GroupImpl::scatter(std::span<std::span<std::byte const> const> sends, std::span<std::byte> block, int root,
                                DataType type) {
  core_.expect_peer(root, "scatter");
  ProgressLock const lock(core_);
  if (rank() == root) {
    expects(sends.size() == static_cast<std::size_t>(size()), "scatter: the root needs one input for each rank");
    copy_own_block(sends[static_cast<std::size_t>(rank())], block, "scatter");
  }
  core_.throw_if_failed();
  Collective const collective(core_.channels(), Verb::kScatter, root, core_.timeout(),
                              {.input_bytes = total_bytes(sends), .output_bytes = block.size(), .data_type = type});
  if (rank() == root) {
    collective.send_to_each(sends);
  } else {
    collective.receive(root, block);
  }
  return finish_start(collective.operation());
}

OperationPtr GroupImpl::all_gather(std::span<std::byte const> block, std::span<std::span<std::byte> const> receives,
                                   DataType type) {
  expects(receives.size() == static_cast<std::size_t>(size()), "all_gather needs one output for each rank");
  copy_own_block(block, receives[static_cast<std::size_t>(rank())], "all_gather");
  ProgressLock const lock(core_);
  core_.throw_if_failed();
  Collective const collective(core_.channels(), Verb::kAllGather, -1, core_.timeout(),
                              {.input_bytes = block.size(), .output_bytes = total_bytes(receives), .data_type = type});
  collective.send_to_all(block);
  collective.receive_from_all(receives);
  return finish_start(collective.operation());
}

OperationPtr GroupImpl::barrier() {
  ProgressLock const lock(core_);
  core_.throw_if_failed();
  Collective const collective(core_.channels(), Verb::kBarrier, -1, core_.timeout(), {});
  collective.send_to_all({});
  collective.receive_nothing_from_all();
  return finish_start(collective.operation());
}

Status GroupImpl::wait(Operation& base, std::optional<std::chrono::milliseconds> timeout) {
  auto& operation = static_cast<OperationState&>(base);
  if (operation.done() && !options().adapt_lag) return operation.status();
  ProgressLock lock(core_);
  return core_.wait(lock, operation, timeout);
}

bool GroupImpl::test(Operation& operation) {
  if (operation.done()) return true;
  ProgressLock const lock(core_);
  core_.progress();
  auto const now = Clock::now();
  core_.check_deadlines(now);
  core_.revoke_rts(now);
  return operation.done();
}

void GroupImpl::on_done(Operation& base, std::function<void()> callback, std::chrono::microseconds poll_time) {
  auto& operation = static_cast<OperationState&>(base);
  if (!operation.done()) {
    ProgressLock lock(core_);
    if (core_.call_when_done(lock, operation, callback, poll_time)) return;
  }
  callback();
}

}  // namespace headway::comm
