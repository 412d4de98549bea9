// SPDX-License-Identifier: Apache-2.0

// Random messages between all pairs of ranks, beside the exchanges of a history.
//
// The plan fixes how many messages each pair has, with which match numbers (the tags of MPI) and sizes. Each rank
// starts its sends and receives in an order of its own, so that some receives come first and some last. At the end
// every message has been received once, with the right bytes.

#include "message_traffic.hpp"

#include "history_failure.hpp"

#include <algorithm>
#include <utility>

namespace headway::comm::stress {

namespace {

constexpr std::byte kSpoiled{0xee};

}  // namespace

MessageTraffic::MessageTraffic(Group& group, HistoryPlan const& plan)
    : group_(group),
      plan_(plan),
      rank_(group.rank()),
      size_(group.size()),
      num_sent_(static_cast<std::size_t>(size_)),
      num_received_(static_cast<std::size_t>(size_)),
      next_any_(static_cast<std::size_t>(size_)) {
  for (int peer = 0; peer < size_; ++peer) {
    num_to_start_ += plan_.num_messages(rank_, peer) + plan_.num_messages(peer, rank_);
    for (std::uint64_t index = 0; index < plan_.num_messages(peer, rank_); ++index) {
      if (plan_.message_match(message_from(peer, rank_, index)) == HistoryPlan::kMatchAny) ++num_any_left_;
    }
    skip_match_any(peer);
  }
}

bool MessageTraffic::start_one(Random& random) {
  if (num_to_start_ == 0) return false;
  --num_to_start_;
  // Starts at a random choice among sends and receives of all pairs, and takes the next one that has something left.
  std::uint64_t const num_choices = 2 * static_cast<std::uint64_t>(size_) + 1;
  std::uint64_t const first = random.below(num_choices);
  for (std::uint64_t i = 0; i < num_choices; ++i) {
    std::uint64_t const choice = (first + i) % num_choices;
    auto const peer = static_cast<std::size_t>(choice / 2);
    int const peer_rank = static_cast<int>(peer);
    if (choice == num_choices - 1) {
      if (num_any_left_ == 0) continue;
      start_receive_any();
    } else if (choice % 2 == 0) {
      if (num_sent_[peer] == plan_.num_messages(rank_, peer_rank)) continue;
      start_send(peer_rank);
    } else {
      if (num_received_[peer] == plan_.num_messages(peer_rank, rank_)) continue;
      start_receive(peer_rank);
    }
    return true;
  }
  throw HistoryFailure("the plan of messages does not add up");
}

void MessageTraffic::start_send(int peer) {
  std::uint64_t const index = num_sent_[static_cast<std::size_t>(peer)]++;
  BlockId const id = message_from(rank_, peer, index);
  std::vector<std::byte> memory(plan_.message_bytes(id));
  fill_payload(memory, id.key());
  auto operation = group_.send(memory, peer, plan_.message_match(id), plan_.message_type(id));
  pending_.push_back({std::move(operation), true, peer, index, std::move(memory)});
}

void MessageTraffic::start_receive(int peer) {
  std::uint64_t const index = num_received_[static_cast<std::size_t>(peer)]++;
  skip_match_any(peer);
  BlockId const id = message_from(peer, rank_, index);
  std::vector<std::byte> memory(plan_.message_bytes(id), kSpoiled);
  auto operation = group_.receive(memory, peer, plan_.message_match(id), plan_.message_type(id));
  pending_.push_back({std::move(operation), false, peer, index, std::move(memory)});
}

void MessageTraffic::start_receive_any() {
  --num_any_left_;
  std::vector<std::byte> memory(HistoryPlan::kMatchAnyBytes, kSpoiled);
  auto operation = group_.receive_any(memory, HistoryPlan::kMatchAny, HistoryPlan::kMatchAnyType);
  pending_.push_back({std::move(operation), false, -1, 0, std::move(memory)});
}

void MessageTraffic::skip_match_any(int peer) {
  auto& next = num_received_[static_cast<std::size_t>(peer)];
  while (next < plan_.num_messages(peer, rank_) &&
         plan_.message_match(message_from(peer, rank_, next)) == HistoryPlan::kMatchAny) {
    ++next;
  }
}

Operation* MessageTraffic::some_pending(Random& random) {
  return pending_.empty() ? nullptr : pending_[random.below(pending_.size())].operation.get();
}

void MessageTraffic::collect() {
  bool older_any_is_pending = false;  // The messages of match-any receives are known only in the order of their starts.
  std::erase_if(pending_, [&](Message& message) {
    bool const is_any = message.peer < 0;
    if (!message.operation->done() || (is_any && older_any_is_pending)) {
      older_any_is_pending = older_any_is_pending || is_any;
      return false;
    }
    verify(message);
    return true;
  });
}

void MessageTraffic::verify(Message& message) {
  Status const status = message.operation->status();
  if (!status.ok()) throw HistoryFailure("rank " + std::to_string(rank_) + ": " + std::string(status.message()));
  if (message.is_send) {
    std::fill(message.memory.begin(), message.memory.end(), kSpoiled);
  } else if (message.peer < 0) {
    verify_any(message);
  } else {
    verify_received(message, message.peer, message.index);
  }
}

void MessageTraffic::verify_any(Message& message) {
  int const sender = message.operation->source();
  if (sender < 0 || sender >= size_) throw HistoryFailure("a receive from any rank does not name its sender");
  auto& index = next_any_[static_cast<std::size_t>(sender)];
  while (index < plan_.num_messages(sender, rank_) &&
         plan_.message_match(message_from(sender, rank_, index)) != HistoryPlan::kMatchAny) {
    ++index;
  }
  verify_received(message, sender, index++);
}

void MessageTraffic::verify_received(Message& message, int sender, std::uint64_t index) const {
  auto const wrong = first_wrong_byte(message.memory, message_from(sender, rank_, index).key());
  if (!wrong) return;
  throw HistoryFailure("rank " + std::to_string(rank_) + ", message " + std::to_string(index) + " from rank " +
                       std::to_string(sender) + ": byte " + std::to_string(*wrong) + " of " +
                       std::to_string(message.memory.size()) + " is wrong");
}

}  // namespace headway::comm::stress
