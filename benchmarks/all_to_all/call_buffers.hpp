#pragma once

#include "split.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <vector>

namespace headway::benchmarks {

/// One block for each rank, back to back in ordinary user memory, as MPI_Alltoallv takes them.
class BlockBuffer {
 public:
  explicit BlockBuffer(std::vector<std::size_t> block_bytes);

  [[nodiscard]] std::span<std::byte> all() const { return {memory_.get(), total_bytes_}; }
  [[nodiscard]] std::span<std::byte> block(int rank) const;
  [[nodiscard]] std::size_t offset(int rank) const { return offsets_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] std::vector<std::size_t> const& block_bytes() const { return block_bytes_; }

 private:
  struct Release {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::vector<std::size_t> block_bytes_;
  std::vector<std::size_t> offsets_;
  std::size_t total_bytes_ = 0;
  std::unique_ptr<std::byte[], Release> memory_;
};

/// What one rank sends and receives in a call, with contents that tell every byte of every block apart.
class CallBuffers {
 public:
  CallBuffers(Split split, std::size_t bytes_per_rank, int rank, int ranks);

  /// Writes what is to be sent in `round`, and into each byte to be received the complement of what should arrive.
  void fill(std::uint64_t round);
  /// @throws std::runtime_error naming the first byte received that is not what its sender sent in `round`.
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
