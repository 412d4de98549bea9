// SPDX-License-Identifier: Apache-2.0

// Consensus of the ranks that remain after a failure: who are the members of the new group?
//
// Idea: each rank sends every peer a claim: attempt, members, progress. An attempt is one try to connect the new group;
// a failed one raises its number. At first the members are all ranks that the sender does not know to be lost. A rank
// drops a peer whose connection ended, and every rank that a member's claim drops; then it sends its changed claim. It
// has agreed when the newest claim of every member equals its own in attempt and members.
//
// Example: of ranks 0 to 3, rank 3 dies. Ranks 0 and 1 see it and claim {0, 1, 2}; rank 2 has claimed {0, 1, 2, 3}.
//   Rank 2 reads the claim of rank 0, drops rank 3 and claims {0, 1, 2}. Now all three claims are equal.
//   Completed all-to-alls are 7, 6 and 7: the members resume at operation 6.
//
// Invariants: members are only ever dropped, and attempts only rise, so claims converge.
//   A claim from a non-member is ignored.
//   A member's claim without this rank means exclusion (excluded_by), not that this rank drops itself.
//   The end of a connection is no loss if that peer sent kDone for this attempt: it has the new group and may close the
//   old one. Nobody gives an attempt up once a peer is done with it.
// Format: the first byte is the kind. Claim: attempt, member bits in words of 32, collectives, number of channels,
// all-to-alls of each. Value: attempt, key, value, in place of the store that the old group had. Done: attempt.
// Integers are little-endian, 32 bits; counts take two.
// Complexity: each change of a rank's claim costs n - 1 OOB messages; it changes once per dropped rank and attempt at
// most.
// Source: design and limits (network partition, silence) in docs/design/shrink.md.

#include "group/survivors.hpp"

#include "bootstrap/bytes.hpp"
#include "headway/comm/status.hpp"

#include <algorithm>
#include <utility>

namespace headway::comm {

namespace {

constexpr char kClaim = '\x03', kValue = '\x04', kDone = '\x05';  ///< First byte of an OOB message.

std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

/// Returns the byte `kind` followed by the body.
/// @throws UsageError if they do not fit an OOB message.
std::string oob_of(char kind, ByteWriter& body) {
  auto const bytes = body.take();
  std::string text(1, kind);
  text.append(reinterpret_cast<char const*>(bytes.data()), bytes.size());
  expects(text.size() <= kMaxOobBytes,
          "what the survivors of a group must tell each other does not fit an OOB message");
  return text;
}

/// Integers of messages have 32 bits; a count takes two, the lower half first.
void write_count(ByteWriter& body, std::uint64_t count) {
  body.integer(static_cast<std::uint32_t>(count)).integer(static_cast<std::uint32_t>(count >> 32));
}

std::uint64_t read_count(ByteReader& body) {
  std::uint64_t const low = body.integer();
  return low | std::uint64_t{body.integer()} << 32;
}

/// Writes a set of ranks as bits: rank r is bit r mod 32 of word r / 32. Ranks 0, 1 and 33 of 40 are the words 3 and 2.
void write_ranks(ByteWriter& body, std::vector<bool> const& ranks) {
  for (std::size_t first = 0; first < ranks.size(); first += 32) {
    std::uint32_t bits = 0;
    for (std::size_t rank = first; rank < std::min(ranks.size(), first + 32); ++rank) {
      bits |= static_cast<std::uint32_t>(ranks[rank]) << (rank - first);
    }
    body.integer(bits);
  }
}

std::vector<bool> read_ranks(ByteReader& body, std::size_t size) {
  std::vector<bool> ranks(size);
  std::uint32_t bits = 0;
  for (std::size_t rank = 0; rank < size; ++rank, bits >>= 1) {
    if (rank % 32 == 0) bits = body.integer();
    ranks[rank] = (bits & 1) != 0;
  }
  return ranks;
}

}  // namespace

Survivors::Survivors(int rank, int size)
    : rank_(rank), members_(index(size), true), claims_(index(size)), is_done_(index(size)) {}

bool Survivors::is_survivor_message(std::string_view message) {
  return !message.empty() && message.front() >= kClaim && message.front() <= kDone;
}

void Survivors::on_oob(int peer, std::string_view text) {
  if (!is_survivor_message(text)) return;
  char const kind = text.front();
  auto const body = std::as_bytes(std::span(text.substr(1)));
  if (kind == kClaim) return on_claim(peer, body);
  ByteReader reader(body);
  std::uint32_t const attempt = reader.integer();
  if (kind == kDone) {
    is_done_[index(peer)] = is_done_[index(peer)] || (reader.complete() && attempt == attempt_);
    return;
  }
  std::string key = reader.text(kMaxOobBytes);
  std::string value = reader.text(kMaxOobBytes);
  if (reader.complete()) values_.insert_or_assign({attempt, std::move(key)}, std::move(value));
}

void Survivors::on_claim(int peer, std::span<std::byte const> body) {
  ByteReader reader(body);
  Claim claim{.attempt = reader.integer(), .members = read_ranks(reader, members_.size()), .progress = {}};
  claim.progress.collectives = read_count(reader);
  claim.progress.all_to_alls.resize(std::min<std::uint32_t>(reader.integer(), kMaxOobBytes));
  for (auto& count : claim.progress.all_to_alls) count = read_count(reader);
  if (!reader.complete() || !members_[index(peer)]) return;
  if (!claim.members[index(rank_)]) excluded_by_ = peer;
  for (std::size_t rank = 0; rank < members_.size(); ++rank) {
    if (!claim.members[rank] && rank != index(rank_)) drop(static_cast<int>(rank));
  }
  if (claim.attempt > attempt_) {
    attempt_ = claim.attempt;
    has_news_ = true;
  }
  claims_[index(peer)] = std::move(claim);
}

void Survivors::lost(int peer, std::string_view /*reason*/) {
  if (!is_done_[index(peer)]) drop(peer);
}

void Survivors::drop(int peer) {
  if (!members_[index(peer)]) return;
  members_[index(peer)] = false;
  has_news_ = true;
}

void Survivors::begin(Progress own, std::span<int const> to_exclude) {
  own_ = std::move(own);
  has_begun_ = has_news_ = true;
  for (int const peer : to_exclude) drop(peer);
}

void Survivors::exclude_silent() {
  for (int peer = 0; peer < static_cast<int>(members_.size()); ++peer) {
    if (peer != rank_ && !claims_[index(peer)]) drop(peer);
  }
}

// The next claim carries the higher number, and all members adopt it: they begin the same attempt.
void Survivors::give_up(std::uint32_t attempt) {
  if (attempt_ > attempt) return;
  attempt_ = attempt + 1;
  has_news_ = true;
}

std::string Survivors::done_oob() const {
  ByteWriter body;
  body.integer(attempt_);
  return oob_of(kDone, body);
}

// Several changes between two calls go out as one claim: only the newest one counts.
std::optional<std::string> Survivors::take_news() {
  if (!has_begun_ || !std::exchange(has_news_, false)) return std::nullopt;
  return claim_oob();
}

std::string Survivors::claim_oob() const {
  ByteWriter body;
  body.integer(attempt_);
  write_ranks(body, members_);
  write_count(body, own_.collectives);
  body.integer(static_cast<std::uint32_t>(own_.all_to_alls.size()));
  for (auto const count : own_.all_to_alls) write_count(body, count);
  return oob_of(kClaim, body);
}

bool Survivors::agrees(int peer) const {
  auto const& claim = claims_[index(peer)];
  return claim && claim->attempt == attempt_ && claim->members == members_;
}

bool Survivors::has_agreed() const {
  return has_begun_ && std::ranges::all_of(members(), [&](int peer) { return peer == rank_ || agrees(peer); });
}

std::vector<int> Survivors::members() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < static_cast<int>(members_.size()); ++rank) {
    if (members_[index(rank)]) ranks.push_back(rank);
  }
  return ranks;
}

Progress Survivors::common_progress() const {
  Progress common = own_;
  for (int const peer : members()) {
    if (peer == rank_) continue;
    Progress const& other = claims_[index(peer)]->progress;
    common.collectives = std::min(common.collectives, other.collectives);
    for (std::size_t channel = 0; channel < common.all_to_alls.size(); ++channel) {
      if (channel >= other.all_to_alls.size()) continue;
      common.all_to_alls[channel] = std::min(common.all_to_alls[channel], other.all_to_alls[channel]);
    }
  }
  return common;
}

std::string Survivors::who_is_awaited() const {
  std::string text;
  for (int const peer : members()) {
    if (peer != rank_ && !agrees(peer)) text += (text.empty() ? "rank " : ", rank ") + std::to_string(peer);
  }
  return text;
}

bool Survivors::is_anyone_done() const { return std::ranges::find(is_done_, true) != is_done_.end(); }

std::string Survivors::value_oob(std::uint32_t attempt, std::string const& key, std::string_view value) {
  values_.insert_or_assign({attempt, key}, std::string(value));
  ByteWriter body;
  body.integer(attempt).text(key).text(value);
  return oob_of(kValue, body);
}

std::optional<std::string> Survivors::value(std::uint32_t attempt, std::string const& key) const {
  auto const found = values_.find({attempt, key});
  if (found == values_.end()) return std::nullopt;
  return found->second;
}

}  // namespace headway::comm
