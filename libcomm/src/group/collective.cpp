// SPDX-License-Identifier: Apache-2.0

// All collectives but all-to-all, each as a flat set of point-to-point messages under one collective number. Every rank
// exchanges directly with the ranks that it has data for. No rank forwards, so none depends on another's progress
// thread. Why flat: docs/design/point_to_point_messages.md.

#include "group/collective.hpp"

#include <algorithm>
#include <cstring>
#include <string>

namespace headway::comm {

Collective::Collective(GroupChannels& channels, Verb verb, int root, std::chrono::milliseconds timeout,
                       FlightEntry const& flight)
    : channels_(channels), type_(flight.data_type) {
  std::uint64_t const seq = channels.p2p().begin_collective(verb, std::max(root, 0));
  match_ = Match::collective(seq, std::max(root, 0));
  FlightTitle const title{.verb = verb_name(verb), .seq = seq, .peer = root};
  operation_ = channels.make_operation(verb, seq, timeout, {.title = title, .entry = flight});
}

void Collective::send(int peer, std::span<std::byte const> block) const {
  channels_.p2p().send({.operation = operation_, .peer = peer, .match = match_, .data_type = type_}, block);
}

void Collective::receive(int peer, std::span<std::byte> block) const {
  channels_.p2p().receive({.operation = operation_, .peer = peer, .match = match_, .data_type = type_}, block);
}

void Collective::send_to_all(std::span<std::byte const> block) const {
  for (int distance = 1; distance < size(); ++distance) send(peer_at(distance), block);
}

void Collective::send_to_each(std::span<std::span<std::byte const> const> blocks) const {
  for (int distance = 1; distance < size(); ++distance) {
    int const peer = peer_at(distance);
    send(peer, blocks[static_cast<std::size_t>(peer)]);
  }
}

void Collective::receive_from_all(std::span<std::span<std::byte> const> blocks) const {
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank()) receive(peer, blocks[static_cast<std::size_t>(peer)]);
  }
}

void Collective::receive_nothing_from_all() const {
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank()) receive(peer, {});
  }
}

void copy_own_block(std::span<std::byte const> from, std::span<std::byte> to, char const* what) {
  expects(from.size() == to.size(), std::string(what) + ": the own block to send and to receive differ in size");
  if (!from.empty() && from.data() != to.data()) std::memmove(to.data(), from.data(), from.size());
}

}  // namespace headway::comm
