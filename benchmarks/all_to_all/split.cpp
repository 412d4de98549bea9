// SPDX-License-Identifier: Apache-2.0

// Block sizes of the splits. Both sides of a block compute its size on their own, so rounding must agree: borders
// between blocks are rounded, not the blocks, and the borders of a source add up to its bytes.

#include "split.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

namespace headway::benchmarks {

namespace {

std::size_t even_bytes(std::size_t total, int source, int destination, int ranks) {
  auto const size = static_cast<std::size_t>(ranks);
  // Counts from the source's right neighbour, so that the remainder does not all go to rank 0.
  auto const distance = static_cast<std::size_t>((destination - source - 1 + ranks) % ranks);
  return total / size + (distance < total % size ? 1 : 0);
}

/// Position of `destination` in the popularity order of `source`, from 0.
int popularity_position(int source, int destination, int ranks) {
  std::vector<int> order(static_cast<std::size_t>(ranks));
  std::iota(order.begin(), order.end(), 0);
  std::mt19937 random(static_cast<std::uint32_t>(source) + 1);
  for (std::size_t last = order.size() - 1; last > 0; --last) std::swap(order[last], order[random() % (last + 1)]);
  return static_cast<int>(std::find(order.begin(), order.end(), destination) - order.begin());
}

/// Bytes of the block at `position` in the popularity order, from 0. The blocks add up to `total`, since borders are
/// rounded. The share of a block is proportional to 1 / (position + 1).
std::size_t zipf_bytes(std::size_t total, int position, int ranks) {
  auto const harmonic = [](int terms) {
    double sum = 0;
    for (int i = 1; i <= terms; ++i) sum += 1.0 / i;
    return sum;
  };
  double const scale = static_cast<double>(total) / harmonic(ranks);
  auto const border = [&](int terms) {
    return terms == ranks ? total : static_cast<std::size_t>(std::llround(scale * harmonic(terms)));
  };
  return border(position + 1) - border(position);
}

}  // namespace

std::size_t block_bytes(Split split, std::size_t bytes_per_rank, int source, int destination, int ranks) {
  switch (split) {
    case Split::kEven:
      return even_bytes(bytes_per_rank, source, destination, ranks);
    case Split::kZipf:
      return zipf_bytes(bytes_per_rank, popularity_position(source, destination, ranks), ranks);
    case Split::kIncast:
      return zipf_bytes(bytes_per_rank, destination, ranks);
  }
  return 0;
}

}  // namespace headway::benchmarks
