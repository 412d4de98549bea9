// All collectives but all-to-all, each as a flat set of pair messages under one collective number. Every rank exchanges
// directly with the ranks that it has data for. No rank forwards, so none depends on another's progress thread. Why
// flat: docs/decisions/pair_messages.md.

#include "group_impl.hpp"

#include <algorithm>
#include <cstring>

namespace headway::comm {

namespace {

void copy_own_block(std::span<std::byte const> from, std::span<std::byte> to, char const* what) {
  expects(from.size() == to.size(), std::string(what) + ": the own block to send and to receive differ in size");
  if (!from.empty() && from.data() != to.data()) std::memmove(to.data(), from.data(), from.size());
}

}  // namespace

void GroupImpl::expect_peer(int peer, char const* what) const {
  if (peer >= 0 && peer < size_) return;
  throw UsageError(std::string(what) + ": rank " + std::to_string(peer) + " is not in a group of " +
                   std::to_string(size_));
}

std::shared_ptr<OperationState> GroupImpl::start_pair_operation(Verb verb, std::uint64_t number, PairFlight flight) {
  throw_if_failed();
  auto operation = std::make_shared<OperationState>();
  operation->reset(verb, number, timeout_);
  if (wire_.flight_recorder().is_on()) {
    flight.entry.started = flight.entry.posted = FlightClock::ticks();
    operation->flight = flight;
  }
  return operation;
}

OperationPtr GroupImpl::finish_start(std::shared_ptr<OperationState> operation) {
  if (operation->pending_parts() == 0) {
    if (!failed_ && wire_.flight_recorder().is_on()) wire_.flight_recorder().complete(operation->flight);
    operation->finish(failed_ ? failure_ : Status());
  } else {
    operation->pending_index = pair_operations_.size();
    pair_operations_.push_back(operation);
  }
  check_failures();
  return operation;
}

OperationPtr GroupImpl::send(std::span<std::byte const> block, int peer, std::uint64_t match, DataType type) {
  expect_peer(peer, "send");
  expects(peer != rank_, "send: a rank cannot send to itself");
  expects(match >> 63 == 0, "send: match must be below 2^63");
  Visit visit(*this);
  auto operation =
      start_pair_operation(Verb::kSend, num_pair_operations_++,
                           {.title = {.verb = "send", .number = wire_.flight_recorder().next_send(peer), .peer = peer},
                            .entry = {.input_bytes = block.size(), .data_type = type}});
  pair_.send({.operation = operation, .peer = peer, .match = {match}, .data_type = type}, block);
  return finish_start(std::move(operation));
}

OperationPtr GroupImpl::receive(std::span<std::byte> block, int peer, std::uint64_t match, DataType type) {
  expect_peer(peer, "receive");
  expects(peer != rank_, "receive: a rank cannot receive from itself");
  return start_receive(block, peer, match, type);
}

OperationPtr GroupImpl::receive_any(std::span<std::byte> block, std::uint64_t match, DataType type) {
  return start_receive(block, -1, match, type);
}

OperationPtr GroupImpl::start_receive(std::span<std::byte> block, int peer, std::uint64_t match, DataType type) {
  expects(match >> 63 == 0, "receive: match must be below 2^63");
  Visit visit(*this);
  auto operation = start_pair_operation(Verb::kSend, num_pair_operations_++,
                                        {.title = {.verb = peer < 0 ? "receive_any" : "receive",
                                                   .number = wire_.flight_recorder().next_receive(peer),
                                                   .peer = peer},
                                         .entry = {.output_bytes = block.size(), .data_type = type}});
  pair_.receive({.operation = operation, .peer = peer, .match = {match}, .data_type = type}, block);
  return finish_start(std::move(operation));
}

GroupImpl::Collective GroupImpl::start_collective(Verb verb, int root, FlightEntry const& flight) {
  throw_if_failed();
  std::uint64_t const number = pair_.begin_collective(verb, std::max(root, 0));
  FlightTitle const title{.verb = verb_name(verb), .number = number, .peer = root};
  return {.operation = start_pair_operation(verb, number, {.title = title, .entry = flight}),
          .match = Match::collective(number, std::max(root, 0)),
          .type = flight.data_type};
}

void GroupImpl::send_part(Collective const& collective, int peer, std::span<std::byte const> block) {
  pair_.send({.operation = collective.operation, .peer = peer, .match = collective.match, .data_type = collective.type},
             block);
}

void GroupImpl::receive_part(Collective const& collective, int peer, std::span<std::byte> block) {
  pair_.receive(
      {.operation = collective.operation, .peer = peer, .match = collective.match, .data_type = collective.type},
      block);
}

OperationPtr GroupImpl::broadcast(std::span<std::byte> block, int root, DataType type) {
  expect_peer(root, "broadcast");
  Visit visit(*this);
  Collective const collective = start_collective(
      Verb::kBroadcast, root, {.input_bytes = block.size(), .output_bytes = block.size(), .data_type = type});
  if (rank_ != root) {
    receive_part(collective, root, block);
  } else {
    for (int distance = 1; distance < size_; ++distance) send_part(collective, (rank_ + distance) % size_, block);
  }
  return finish_start(collective.operation);
}

OperationPtr GroupImpl::gather(std::span<std::byte const> block, std::span<std::span<std::byte> const> receives,
                               int root, DataType type) {
  expect_peer(root, "gather");
  Visit visit(*this);
  if (rank_ == root) {
    expects(receives.size() == static_cast<std::size_t>(size_), "gather: the root needs one output for each rank");
    copy_own_block(block, receives[static_cast<std::size_t>(rank_)], "gather");
  }
  Collective const collective = start_collective(
      Verb::kGather, root, {.input_bytes = block.size(), .output_bytes = total_bytes(receives), .data_type = type});
  if (rank_ != root) {
    send_part(collective, root, block);
  } else {
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != rank_) receive_part(collective, peer, receives[static_cast<std::size_t>(peer)]);
    }
  }
  return finish_start(collective.operation);
}

OperationPtr GroupImpl::scatter(std::span<std::span<std::byte const> const> sends, std::span<std::byte> block, int root,
                                DataType type) {
  expect_peer(root, "scatter");
  Visit visit(*this);
  if (rank_ == root) {
    expects(sends.size() == static_cast<std::size_t>(size_), "scatter: the root needs one input for each rank");
    copy_own_block(sends[static_cast<std::size_t>(rank_)], block, "scatter");
  }
  Collective const collective = start_collective(
      Verb::kScatter, root, {.input_bytes = total_bytes(sends), .output_bytes = block.size(), .data_type = type});
  if (rank_ != root) {
    receive_part(collective, root, block);
  } else {
    for (int distance = 1; distance < size_; ++distance) {
      int const peer = (rank_ + distance) % size_;
      send_part(collective, peer, sends[static_cast<std::size_t>(peer)]);
    }
  }
  return finish_start(collective.operation);
}

OperationPtr GroupImpl::all_gather(std::span<std::byte const> block, std::span<std::span<std::byte> const> receives,
                                   DataType type) {
  expects(receives.size() == static_cast<std::size_t>(size_), "all_gather needs one output for each rank");
  copy_own_block(block, receives[static_cast<std::size_t>(rank_)], "all_gather");
  Visit visit(*this);
  Collective const collective = start_collective(
      Verb::kAllGather, -1, {.input_bytes = block.size(), .output_bytes = total_bytes(receives), .data_type = type});
  for (int distance = 1; distance < size_; ++distance) send_part(collective, (rank_ + distance) % size_, block);
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_) receive_part(collective, peer, receives[static_cast<std::size_t>(peer)]);
  }
  return finish_start(collective.operation);
}

OperationPtr GroupImpl::barrier() {
  Visit visit(*this);
  Collective const collective = start_collective(Verb::kBarrier, -1, {});
  for (int distance = 1; distance < size_; ++distance) send_part(collective, (rank_ + distance) % size_, {});
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_) receive_part(collective, peer, {});
  }
  return finish_start(collective.operation);
}

}  // namespace headway::comm
