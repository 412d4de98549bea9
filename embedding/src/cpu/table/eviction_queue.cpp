// SPDX-License-Identifier: Apache-2.0

// Heaps of one stripe; eviction_queue.hpp has the idea.

#include "cpu/table/eviction_queue.hpp"

#include <algorithm>

namespace headway::embedding {

namespace {

/// Comparison for heaps with the least score in front.
constexpr auto kIsAfter = [](EvictionCandidate const& a, EvictionCandidate const& b) { return a.score > b.score; };

void push(EvictionQueue::Heap& heap, EvictionCandidate const& candidate) {
  heap.push_back(candidate);
  std::ranges::push_heap(heap, kIsAfter);
}

}  // namespace

void EvictionQueue::add(EvictionCandidate const& candidate, EvictionHorizon const& horizon) {
  if (candidate.score < horizon.known) {
    push(first_, candidate);
  } else if (candidate.score < horizon.next) {
    push(next_, candidate);
  }
}

EvictionCandidate EvictionQueue::take_least() {
  std::ranges::pop_heap(first_, kIsAfter);
  auto const least = first_.back();
  first_.pop_back();
  return least;
}

void EvictionQueue::advance() {
  std::swap(first_, next_);
  cursor_ = {};
}

}  // namespace headway::embedding
