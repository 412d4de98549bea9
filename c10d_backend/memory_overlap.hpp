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

/// Memory that one call reads and writes, block by block. Peers write to it in any order, and read from it late: a
/// result would depend on the size of the blocks if some were both.
class BlockMap final {
 public:
  static constexpr int kNoRank = -1;  ///< The call has one such block, not one for each rank.

  /// `rank`: for which the block is.
  void read(std::span<std::byte const> block, int rank = kNoRank) {
    if (block.empty()) return;
    reads_.include(block);
    blocks_.push_back({block.data(), block.data() + block.size(), rank, /*is_written=*/false});
  }
  /// `rank`: from which the block comes.
  void write(std::span<std::byte const> block, int rank = kNoRank) {
    if (block.empty()) return;
    writes_ascend_ = writes_ascend_ && (writes_.end == nullptr || writes_.end <= block.data());
    writes_.include(block);
    blocks_.push_back({block.data(), block.data() + block.size(), rank, /*is_written=*/true});
  }
  /// A block that this rank gives to itself: it may be exactly the memory that it goes to.
  void read_own(std::span<std::byte const> block, std::span<std::byte const> destination, int rank = kNoRank) {
    if (block.data() != destination.data() || block.size() != destination.size()) read(block, rank);
  }
  /// `verb`: "all_to_all". Cost: constant if the blocks that are written are in order, and apart from all that are
  /// read.
  /// @throws ValueError if a block that is written shares memory with another one.
  void expect_disjoint(std::string_view verb) {
    if (!writes_ascend_ || (reads_.begin < writes_.end && writes_.begin < reads_.end)) compare_blocks(verb);
  }

 private:
  struct Block {
    std::byte const* begin;
    std::byte const* end;
    int rank;
    bool is_written;
  };
  /// The bytes from the first to the last of some blocks.
  struct Extent {
    std::byte const* begin = nullptr;
    std::byte const* end = nullptr;  ///< Null: there is no block.

    void include(std::span<std::byte const> block) {
      begin = end == nullptr ? block.data() : std::min(begin, block.data());
      end = std::max(end, block.data() + block.size());
    }
  };

  void compare_blocks(std::string_view verb);
  [[noreturn]] static void refuse(std::string_view verb, Block const& one, Block const& other);
  static std::string describe(Block const& block);

  c10::SmallVector<Block, 18> blocks_;
  Extent reads_;
  Extent writes_;
  bool writes_ascend_ = true;
};

/// Also for strided tensors, of which the elements are compared, not the range. Several columns of a matrix share
/// nothing. Cost: linear in the elements if ranges overlap. @throws ValueError if tensors that one call writes share
/// memory, or one of them is expanded.
void expects_disjoint_outputs(std::string_view verb, std::vector<at::Tensor> const& outputs);

}  // namespace headway::c10d_backend
