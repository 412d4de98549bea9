// SPDX-License-Identifier: Apache-2.0
#include "headway/embedding/exchanger.hpp"

#include "exchange/rank_blocks.hpp"
#include "headway/base/status.hpp"

#include <algorithm>

namespace headway::embedding {

void Exchanger::Exchange::wait_on(CudaStream /*stream*/) {
  throw base::UsageError("this exchanger does not exchange memory of a device");
}

// Two exchanges: the sizes of the texts, then the texts.
std::vector<std::string> Exchanger::all_gather(std::string const& text) {
  auto const num_ranks = static_cast<std::size_t>(size());
  std::vector<std::size_t> const one(num_ranks, 1), own_size(num_ranks, text.size());
  HostRankBlocks<std::uint64_t> sizes(one), all_sizes(one);
  for (std::size_t rank = 0; rank < num_ranks; ++rank) sizes[rank][0] = text.size();
  start_exchange(*this, sizes, all_sizes)->wait();
  std::vector<std::size_t> received;
  for (std::size_t rank = 0; rank < num_ranks; ++rank) received.push_back(all_sizes[rank][0]);
  HostRankBlocks<char> texts(own_size), all_texts(received);
  for (std::size_t rank = 0; rank < num_ranks; ++rank) std::ranges::copy(text, texts[rank].begin());
  start_exchange(*this, texts, all_texts)->wait();
  std::vector<std::string> result;
  for (std::size_t rank = 0; rank < num_ranks; ++rank) {
    result.emplace_back(all_texts[rank].begin(), all_texts[rank].end());
  }
  return result;
}

}  // namespace headway::embedding
