// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "torch_headers.hpp"

#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace headway::c10d_backend {

/// Memory blocks that one call reads and writes. Blocks are received in any order, and sent blocks are read until the
/// operation ends. If a block were both read and written, the result would depend on block sizes and timing.
/// The algorithm is explained in memory_overlap.cpp.
class BlockMap final {
 public:
  static constexpr int kNoRank = -1;  ///< The block belongs to no single rank, such as the input of a broadcast.

  /// Adds a block that is sent to `rank`.
  void read(std::span<std::byte const> block, int rank = kNoRank) {
    if (block.empty()) return;
    reads_.include(block);
    blocks_.push_back({block.data(), block.data() + block.size(), rank, /*is_written=*/false});
  }
  /// Adds a block that is received from `rank`.
  void write(std::span<std::byte const> block, int rank = kNoRank) {
    if (block.empty()) return;
    writes_ascend_ = writes_ascend_ && (writes_.end == nullptr || writes_.end <= block.data());
    writes_.include(block);
    blocks_.push_back({block.data(), block.data() + block.size(), rank, /*is_written=*/true});
  }
  /// Adds a block that this rank sends to itself. If it is exactly its destination (in place), it is
  /// not added; a partial overlap is an error. The destination is to be added by write().
  void read_own(std::span<std::byte const> block, std::span<std::byte const> destination, int rank = kNoRank) {
    if (block.data() != destination.data() || block.size() != destination.size()) read(block, rank);
  }
  /// Checks all added blocks. `op_name` ("all_to_all") appears in the error. Cost: constant if written blocks are
  /// ascending and lie apart from all read blocks; else O(n log n).
  /// @throws ValueError if a written block shares memory with another block.
  void expect_disjoint(std::string_view op_name) {
    if (!writes_ascend_ || (reads_.begin < writes_.end && writes_.begin < reads_.end)) compare_blocks(op_name);
  }

 private:
  struct Block {
    std::byte const* begin;
    std::byte const* end;
    int rank;
    bool is_written;
  };
  /// Range from the first to the last byte of some blocks.
  struct Extent {
    std::byte const* begin = nullptr;
    std::byte const* end = nullptr;  ///< Null if there is no block.

    void include(std::span<std::byte const> block) {
      begin = end == nullptr ? block.data() : std::min(begin, block.data());
      end = std::max(end, block.data() + block.size());
    }
  };

  void compare_blocks(std::string_view op_name);
  [[noreturn]] static void refuse(std::string_view op_name, Block const& one, Block const& other);
  static std::string describe(Block const& block);

  c10::SmallVector<Block, 18> blocks_;
  Extent reads_;
  Extent writes_;
  bool writes_ascend_ = true;
};

/// Checks the outputs of one call, also strided ones: elements are compared, not ranges. For instance, several columns
/// of a matrix share nothing. Cost: linear in the size of the ranges if they overlap.
/// @throws ValueError if two outputs share memory, or if one has several elements at one address (expand()).
void expects_disjoint_outputs(std::string_view op_name, std::vector<at::Tensor> const& outputs);

}  // namespace headway::c10d_backend
