// SPDX-License-Identifier: Apache-2.0
#include "exchange/row_exchange.hpp"

namespace headway::embedding {

namespace {

/// (ranks) Floats of each block.
std::vector<std::size_t> block_sizes(std::span<SentRows const> tables, std::span<std::size_t const> SentRows::*rows,
                                     std::size_t num_ranks, std::size_t num_notes) {
  std::vector<std::size_t> sizes(num_ranks, num_notes);
  for (auto const& table : tables) {
    for (std::size_t rank = 0; rank < num_ranks; ++rank) sizes[rank] += (table.*rows)[rank] * table.width;
  }
  return sizes;
}

}  // namespace

RowExchange::RowExchange(BatchDevice& device, Exchanger& exchanger, std::span<SentRows const> tables,
                         Block<float> const& notes)
    : device_(device), num_notes_(notes.size()) {
  auto const num_ranks = static_cast<std::size_t>(exchanger.size());
  auto const own = static_cast<std::size_t>(exchanger.rank());
  for (auto const& table : tables) {
    auto& received = received_.emplace_back();
    for (std::size_t rank = 0; rank < num_ranks; ++rank) {
      if (rank != own) num_sent_ += table.sent[rank] * table.width;
      received.push_back(table.received[rank] * table.width);
    }
  }
  if (is_in_place()) {  // The rows of one table lie in the order of a buffer already.
    auto const& table = tables.front();
    sends_ = std::make_unique<RankBlocks<float>>(table.values, block_sizes(tables, &SentRows::sent, num_ranks, 0));
    receives_ = std::make_unique<RankBlocks<float>>(device, received_.front());
    exchange_ = start_exchange(exchanger, *sends_, *receives_);
    return;
  }
  sends_ = std::make_unique<RankBlocks<float>>(device, block_sizes(tables, &SentRows::sent, num_ranks, num_notes_));
  receives_ =
      std::make_unique<RankBlocks<float>>(device, block_sizes(tables, &SentRows::received, num_ranks, num_notes_));
  std::vector<CopyPiece> pieces;
  auto const append = [&](std::size_t rank, std::span<float const> values) {
    pieces.push_back(
        {.to = sends_->take(rank, values.size()).data(), .from = values.data(), .num_bytes = values.size_bytes()});
  };
  for (auto const& table : tables) {
    std::size_t first = 0;
    for (std::size_t rank = 0; rank < num_ranks; ++rank) {
      std::size_t const count = table.sent[rank] * table.width;
      append(rank, table.values.span.subspan(first, count));
      first += count;
    }
  }
  for (std::size_t rank = 0; rank < num_ranks; ++rank) append(rank, notes.span);
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
  auto const take = [&](std::size_t rank, std::span<float> to) {
    pieces.push_back({.to = to.data(), .from = receives_->take(rank, to.size()).data(), .num_bytes = to.size_bytes()});
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
  notes_ = device_.block<float>(num_ranks * num_notes_);
  for (std::size_t rank = 0; rank < num_ranks; ++rank) take(rank, notes_.span.subspan(rank * num_notes_, num_notes_));
  device_.copy(pieces);
  sends_.reset();
  return result;
}

}  // namespace headway::embedding
