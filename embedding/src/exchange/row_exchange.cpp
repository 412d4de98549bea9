// SPDX-License-Identifier: Apache-2.0
#include "exchange/row_exchange.hpp"

namespace headway::embedding {

namespace {

/// (ranks) Floats of each block of a buffer. That of this rank is empty, because its rows stay where they are.
/// @param rows selects the counts: SentRows::sent or SentRows::received
/// @param own this rank
std::vector<std::size_t> block_sizes(std::span<SentRows const> tables, std::span<std::size_t const> SentRows::*rows,
                                     std::size_t num_ranks, std::size_t own, std::size_t num_flags) {
  std::vector<std::size_t> sizes(num_ranks, num_flags);
  for (auto const& table : tables) {
    for (std::size_t rank = 0; rank < num_ranks; ++rank) sizes[rank] += (table.*rows)[rank] * table.width;
  }
  sizes[own] = 0;
  return sizes;
}

}  // namespace

RowExchange::RowExchange(BatchDevice& device, Exchanger& exchanger, std::span<SentRows const> tables,
                         Block<float> const& flags)
    : device_(device), own_(static_cast<std::size_t>(exchanger.rank())), num_flags_(flags.size()) {
  auto const num_ranks = static_cast<std::size_t>(exchanger.size());
  for (auto const& table : tables) {
    auto& received = received_.emplace_back();
    for (std::size_t rank = 0; rank < num_ranks; ++rank) {
      if (rank != own_) num_sent_ += table.sent[rank] * table.width;
      received.push_back(table.received[rank] * table.width);
    }
  }
  if (is_in_place()) {  // The rows of one table lie in the order of a buffer already.
    std::vector<std::size_t> sizes;
    for (std::size_t const count : tables.front().sent) sizes.push_back(count * tables.front().width);
    sends_ = std::make_unique<RankBlocks<float>>(tables.front().values, sizes);
    receives_ = std::make_unique<RankBlocks<float>>(device, received_.front());
    exchange_ = start_exchange(exchanger, *sends_, *receives_);
    return;
  }
  sends_ =
      std::make_unique<RankBlocks<float>>(device, block_sizes(tables, &SentRows::sent, num_ranks, own_, num_flags_));
  receives_ = std::make_unique<RankBlocks<float>>(
      device, block_sizes(tables, &SentRows::received, num_ranks, own_, num_flags_));
  std::vector<CopyPiece> pieces;
  auto const append = [&](std::size_t rank, Block<float> const& block, std::size_t first, std::size_t count) {
    auto const values = block.span.subspan(first, count);
    if (rank == own_) return own_rows_.push_back({values, block.owner});
    pieces.push_back(
        {.to = sends_->take(rank, values.size()).data(), .from = values.data(), .num_bytes = values.size_bytes()});
  };
  for (auto const& table : tables) {
    std::size_t first = 0;
    for (std::size_t rank = 0; rank < num_ranks; ++rank) {
      std::size_t const count = table.sent[rank] * table.width;
      append(rank, table.values, first, count);
      first += count;
    }
  }
  for (std::size_t rank = 0; rank < num_ranks; ++rank) append(rank, flags, 0, num_flags_);
  device.copy(pieces);
  exchange_ = start_exchange(exchanger, *sends_, *receives_);
}

std::vector<Block<float>> RowExchange::finish() {
  exchange_->wait();
  if (is_in_place()) {
    sends_.reset();
    return {receives_->all()};
  }
  std::vector<Block<float>> result;
  std::vector<CopyPiece> pieces;
  auto own_rows = own_rows_.begin();
  auto const take = [&](std::size_t rank, std::span<float> to) {
    auto const from = rank == own_ ? (own_rows++)->span : receives_->take(rank, to.size());
    pieces.push_back({.to = to.data(), .from = from.data(), .num_bytes = to.size_bytes()});
  };
  std::size_t const num_ranks = receives_->num_ranks();
  for (auto const& counts : received_) {
    auto const& values =
        result.emplace_back(device_.block<float>(std::accumulate(counts.begin(), counts.end(), std::size_t{0})));
    std::size_t first = 0;
    for (std::size_t rank = 0; rank < num_ranks; ++rank) {
      take(rank, values.span.subspan(first, counts[rank]));
      first += counts[rank];
    }
  }
  flags_ = device_.block<float>(num_ranks * num_flags_);
  for (std::size_t rank = 0; rank < num_ranks; ++rank) take(rank, flags_.span.subspan(rank * num_flags_, num_flags_));
  device_.copy(pieces);
  sends_.reset();
  own_rows_.clear();
  return result;
}

}  // namespace headway::embedding
