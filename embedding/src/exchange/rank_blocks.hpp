// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/embedding/batch_device.hpp"
#include "headway/embedding/exchanger.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

namespace headway::embedding {

/// One block of elements for, or from, each rank, one after the other in memory. They are not initialised.
/// Example: sizes 2 0 1 give three elements, of which rank 0 has the first two and rank 2 the last.
template <class Element>
class RankBlocks {
 public:
  /// @param sizes (ranks) elements of each block
  RankBlocks(BatchDevice& device, std::span<std::size_t const> sizes) : RankBlocks(sizes) {
    elements_ = device.block<Element>(begins_.back());
  }

  /// Blocks in memory that exists. @param elements as many as `sizes` add up to
  RankBlocks(Block<Element> elements, std::span<std::size_t const> sizes) : RankBlocks(sizes) {
    elements_ = std::move(elements);
  }

  [[nodiscard]] std::size_t num_ranks() const { return begins_.size() - 1; }
  [[nodiscard]] std::span<Element> operator[](std::size_t rank) const {
    return elements_.span.subspan(begins_[rank], begins_[rank + 1] - begins_[rank]);
  }
  [[nodiscard]] Block<Element> const& all() const { return elements_; }
  /// The next `count` elements of the block of `rank`.
  [[nodiscard]] std::span<Element> take(std::size_t rank, std::size_t count) {
    return elements_.span.subspan(std::exchange(next_[rank], next_[rank] + count), count);
  }

 protected:
  explicit RankBlocks(std::span<std::size_t const> sizes) : begins_(sizes.size() + 1) {
    std::inclusive_scan(sizes.begin(), sizes.end(), begins_.begin() + 1);
    next_.assign(begins_.begin(), begins_.end() - 1);
  }
  [[nodiscard]] std::size_t num_elements() const { return begins_.back(); }
  void set(Block<Element> elements) { elements_ = std::move(elements); }

 private:
  std::vector<std::size_t> begins_;  ///< (ranks + 1)
  std::vector<std::size_t> next_;    ///< (ranks) Index of the next element that take() gives.
  Block<Element> elements_;
};

/// RankBlocks in host memory.
template <class Element>
class HostRankBlocks : public RankBlocks<Element> {
 public:
  explicit HostRankBlocks(std::span<std::size_t const> sizes) : RankBlocks<Element>(sizes) {
    std::shared_ptr<Element[]> const elements = std::make_shared_for_overwrite<Element[]>(this->num_elements());
    this->set({std::span(elements.get(), this->num_elements()), elements});
  }
};

/// The owners of several blocks, as one.
template <class... Elements>
[[nodiscard]] std::shared_ptr<void const> owners_of(Block<Elements> const&... blocks) {
  return std::make_shared<std::array<std::shared_ptr<void const>, sizeof...(Elements)>>(
      std::array<std::shared_ptr<void const>, sizeof...(Elements)>{blocks.owner...});
}

/// Starts an exchange of the blocks.
template <class Element>
[[nodiscard]] std::unique_ptr<Exchanger::Exchange> start_exchange(Exchanger& exchanger, RankBlocks<Element> const& sent,
                                                                  RankBlocks<Element> const& received) {
  std::vector<std::span<std::byte const>> sends;
  std::vector<std::span<std::byte>> receives;
  for (std::size_t rank = 0; rank < sent.num_ranks(); ++rank) {
    sends.push_back(std::as_bytes(sent[rank]));
    receives.push_back(std::as_writable_bytes(received[rank]));
  }
  return exchanger.start(sends, receives, owners_of(sent.all(), received.all()));
}

}  // namespace headway::embedding
