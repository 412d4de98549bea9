// SPDX-License-Identifier: Apache-2.0

// Buffers of one call of the benchmark, filled with a pattern that depends on source, destination and round. check()
// finds the first wrong byte, so a system under test that delivers old or misplaced data is refused instead of
// measured.

#include "call_buffers.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

namespace headway::benchmarks {

namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kWordBytes = sizeof(std::uint64_t);

/// Word `index` of a block's contents: a bijection of `index` for each seed, so no two words of a block are equal.
std::uint64_t pattern_word(std::uint64_t seed, std::uint64_t index) {
  std::uint64_t word = (index + seed) * 0x9e3779b97f4a7c15ull;
  word = (word ^ (word >> 29)) * 0xbf58476d1ce4e5b9ull;
  return word ^ (word >> 32);
}

std::uint64_t seed_of(int source, int destination, std::uint64_t round) {
  return pattern_word(round + 1, static_cast<std::uint64_t>(source) << 32 | static_cast<std::uint32_t>(destination));
}

/// Calls visit(offset, bytes, word) for each word of a block. The last word may have fewer bytes.
template <typename Visit>
void for_each_word(std::size_t size, std::uint64_t seed, Visit visit) {
  std::size_t offset = 0;
  for (; offset + kWordBytes <= size; offset += kWordBytes) {
    visit(offset, kWordBytes, pattern_word(seed, offset / kWordBytes));
  }
  if (offset < size) visit(offset, size - offset, pattern_word(seed, offset / kWordBytes));
}

/// `flip` is XORed into each word: 0, or all ones for the complement of the pattern.
void write_pattern(std::span<std::byte> block, std::uint64_t seed, std::uint64_t flip) {
  for_each_word(block.size(), seed, [&](std::size_t offset, std::size_t bytes, std::uint64_t word) {
    word ^= flip;
    std::memcpy(block.data() + offset, &word, bytes);
  });
}

/// Offset of the first word that differs from the pattern, or the size of the block.
std::size_t first_difference(std::span<std::byte const> block, std::uint64_t seed) {
  std::size_t found = block.size();
  for_each_word(block.size(), seed, [&](std::size_t offset, std::size_t bytes, std::uint64_t word) {
    if (found == block.size() && std::memcmp(block.data() + offset, &word, bytes) != 0) found = offset;
  });
  return found;
}

std::vector<std::size_t> sizes_sent(Split split, std::size_t bytes_per_rank, int rank, int ranks) {
  std::vector<std::size_t> sizes;
  sizes.reserve(static_cast<std::size_t>(ranks));
  for (int peer = 0; peer < ranks; ++peer) sizes.push_back(block_bytes(split, bytes_per_rank, rank, peer, ranks));
  return sizes;
}

std::vector<std::size_t> sizes_received(Split split, std::size_t bytes_per_rank, int rank, int ranks) {
  std::vector<std::size_t> sizes;
  sizes.reserve(static_cast<std::size_t>(ranks));
  for (int peer = 0; peer < ranks; ++peer) sizes.push_back(block_bytes(split, bytes_per_rank, peer, rank, ranks));
  return sizes;
}

}  // namespace

std::shared_ptr<std::byte> allocate_plain(std::size_t num_bytes) {
  std::size_t const reserved = (std::max<std::size_t>(num_bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
  auto* const memory = static_cast<std::byte*>(std::aligned_alloc(kAlignment, reserved));
  if (memory == nullptr) throw std::bad_alloc();
  return {memory, [](std::byte* address) { std::free(address); }};
}

BlockBuffer::BlockBuffer(std::vector<std::size_t> block_bytes, Allocate const& allocate)
    : block_bytes_(std::move(block_bytes)) {
  for (std::size_t const bytes : block_bytes_) {
    offsets_.push_back(total_bytes_);
    total_bytes_ += bytes;
  }
  memory_ = allocate(total_bytes_);
}

std::span<std::byte> BlockBuffer::block(int rank) const {
  return all().subspan(offset(rank), block_bytes_[static_cast<std::size_t>(rank)]);
}

CallBuffers::CallBuffers(Split split, std::size_t bytes_per_rank, int rank, int ranks, Allocate const& allocate)
    : rank_(rank),
      ranks_(ranks),
      sends_(sizes_sent(split, bytes_per_rank, rank, ranks), allocate),
      receives_(sizes_received(split, bytes_per_rank, rank, ranks), allocate) {}

void CallBuffers::fill(std::uint64_t round) {
  for (int peer = 0; peer < ranks_; ++peer) {
    write_pattern(sends_.block(peer), seed_of(rank_, peer, round), 0);
    write_pattern(receives_.block(peer), seed_of(peer, rank_, round), ~std::uint64_t{0});
  }
}

void CallBuffers::check(std::uint64_t round) const {
  for (int peer = 0; peer < ranks_; ++peer) {
    auto const block = receives_.block(peer);
    std::size_t const offset = first_difference(block, seed_of(peer, rank_, round));
    if (offset == block.size()) continue;
    throw std::runtime_error("wrong result at rank " + std::to_string(rank_) + ": block of " +
                             std::to_string(block.size()) + " bytes from rank " + std::to_string(peer) +
                             " differs in the 8 bytes from " + std::to_string(offset));
  }
}

}  // namespace headway::benchmarks
