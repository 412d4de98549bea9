// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "split.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace headway::benchmarks {

/// Returns a buffer of `num_bytes`.
using Allocate = std::function<std::shared_ptr<std::byte>(std::size_t num_bytes)>;

/// Allocates ordinary user memory, aligned to cache lines.
std::shared_ptr<std::byte> allocate_plain(std::size_t num_bytes);

/// One block for each rank, back to back, in the layout of MPI_Alltoallv.
class BlockBuffer {
 public:
  BlockBuffer(std::vector<std::size_t> block_bytes, Allocate const& allocate);

  [[nodiscard]] std::span<std::byte> all() const { return {memory_.get(), total_bytes_}; }
  [[nodiscard]] std::span<std::byte> block(int rank) const;
  [[nodiscard]] std::size_t offset(int rank) const { return offsets_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] std::vector<std::size_t> const& block_bytes() const { return block_bytes_; }

 private:
  std::vector<std::size_t> block_bytes_;
  std::vector<std::size_t> offsets_;
  std::size_t total_bytes_ = 0;
  std::shared_ptr<std::byte> memory_;
};

/// Send and receive blocks of one rank in one call. The contents identify every byte of every block.
class CallBuffers {
 public:
  CallBuffers(Split split, std::size_t bytes_per_rank, int rank, int ranks, Allocate const& allocate = allocate_plain);

  /// Writes the send blocks. Their contents differ for each `round`, a number that the caller chooses. Receive blocks
  /// get the complement of the bytes that should arrive.
  void fill(std::uint64_t round);
  /// Compares every received byte with its sender's. @throws std::runtime_error naming the first wrong word.
  void check(std::uint64_t round) const;

  [[nodiscard]] BlockBuffer const& sends() const { return sends_; }
  [[nodiscard]] BlockBuffer const& receives() const { return receives_; }

 private:
  int rank_;
  int ranks_;
  BlockBuffer sends_;
  BlockBuffer receives_;
};

}  // namespace headway::benchmarks
