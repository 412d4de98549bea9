// SPDX-License-Identifier: Apache-2.0

// One rank's part of a random exchange (an all_to_all_v): fills its blocks, checks what arrives, and spoils its buffers
// afterwards.
//
// Spoiling is the point: as soon as an exchange is verified, its memory is overwritten with 0xee. Bytes that the
// library reads or writes too late then differ from what the other rank expects, or destroy a later block.

#include "exchange.hpp"

#include "history_failure.hpp"

#include <algorithm>

namespace headway::comm::stress {

namespace {

constexpr std::size_t kGuardBytes = 8;
constexpr std::byte kGuard{0xa5};
constexpr std::byte kSpoiled{0xee};

}  // namespace

Exchange::Exchange(Group& group, HistoryPlan const& plan, int channel, std::uint64_t index)
    : plan_(plan), rank_(group.rank()), size_(group.size()), channel_(channel), index_(index) {
  lay_out();
  for (int peer = 0; peer < size_; ++peer) {
    fill_payload(sends_[static_cast<std::size_t>(peer)], block_from(rank_, peer).key());
  }
  std::vector<std::span<std::byte const>> const sends(sends_.begin(), sends_.end());
  auto blocks = receives_;
  // Every other call passes capacities, which are larger by the guard, and asks for the sizes.
  if ((index + static_cast<std::uint64_t>(rank_)) % 2 == 1) {
    received_bytes_.resize(blocks.size());
    for (auto& block : blocks) block = std::span(block.data(), block.size() + kGuardBytes);
  }
  operation_ = group.all_to_all_v({.sends = sends,
                                   .receives = blocks,
                                   .data_type = static_cast<DataType>(index % 5),
                                   .channel = channel,
                                   .received_bytes = received_bytes_});
}

void Exchange::lay_out() {
  std::vector<std::size_t> send_bytes, receive_bytes;
  std::size_t total = kGuardBytes;
  for (int peer = 0; peer < size_; ++peer) {
    send_bytes.push_back(plan_.exchange_bytes(block_from(rank_, peer)));
    receive_bytes.push_back(plan_.exchange_bytes(block_from(peer, rank_)));
    total += send_bytes.back() + receive_bytes.back() + 2 * kGuardBytes;
  }
  memory_.assign(total, kGuard);
  std::size_t at = kGuardBytes;
  auto const take = [&](std::size_t bytes) {
    auto const block = std::span(memory_).subspan(at, bytes);
    at += bytes + kGuardBytes;
    return block;
  };
  for (auto const bytes : send_bytes) sends_.push_back(take(bytes));
  for (auto const bytes : receive_bytes) receives_.push_back(take(bytes));
}

void Exchange::verify() {
  Status const status = operation_->status();
  if (!status.ok()) fail(std::string(status.message()));
  for (int sender = 0; sender < size_; ++sender) {
    auto const block = receives_[static_cast<std::size_t>(sender)];
    if (!received_bytes_.empty() && received_bytes_[static_cast<std::size_t>(sender)] != block.size()) {
      fail("a wrong size from rank " + std::to_string(sender));
    }
    if (auto const wrong = first_wrong_byte(block, block_from(sender, rank_).key())) {
      fail("byte " + std::to_string(*wrong) + " of " + std::to_string(block.size()) + " from rank " +
           std::to_string(sender) + " is wrong");
    }
    for (std::size_t i = 0; i < kGuardBytes; ++i) {
      if (block.data()[block.size() + i] != kGuard) fail("wrote past the block from rank " + std::to_string(sender));
    }
  }
  std::fill(memory_.begin(), memory_.end(), kSpoiled);
}

std::string Exchange::name() const {
  return "rank " + std::to_string(rank_) + ", channel " + std::to_string(channel_) + ", exchange " +
         std::to_string(index_);
}

void Exchange::fail(std::string const& what) const { throw HistoryFailure(name() + ": " + what); }

}  // namespace headway::comm::stress
