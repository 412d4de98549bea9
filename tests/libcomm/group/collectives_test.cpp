// SPDX-License-Identifier: Apache-2.0

// Collectives of a group on host memory, each in groups of several sizes, with several block sizes and several roots.
//
// The bytes of a block depend on rank, size and root, and every output lies between guard bytes. So a block of the
// wrong rank, of an earlier call, or one byte too long shows at once. Sizes are below, at and above a slot, which the
// transports treat differently.

#include "exchange.hpp"
#include "headway/comm/group.hpp"
#include "ranks_as_threads.hpp"
#include "test_bytes.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace headway::comm {
namespace {

constexpr DataType kType = 2;  ///< Any number that is equal on all ranks; the library only compares it.
constexpr std::size_t kSizes[] = {0, 1, 100, 4096, 5000, 100000};

/// Outputs of a collective with one block per rank.
class Blocks {
 public:
  Blocks(int count, std::size_t bytes) : blocks_(static_cast<std::size_t>(count), GuardedBytes(bytes)) {
    for (auto& block : blocks_) spans_.push_back(block.span());
  }
  [[nodiscard]] std::span<std::span<std::byte> const> spans() const { return spans_; }
  /// Has each block i the bytes of seed `first_seed` + i, and an intact guard?
  [[nodiscard]] bool hold(std::uint64_t first_seed) const {
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      auto const bytes = blocks_[i].span();
      if (!same_bytes(bytes, test_bytes(bytes.size(), first_seed + i)) || !blocks_[i].is_guard_intact()) return false;
    }
    return true;
  }

 private:
  std::vector<GuardedBytes> blocks_;
  std::vector<std::span<std::byte>> spans_;
};

/// Collectives. Every output is compared with bytes that depend on rank, size and root.
class CollectivesTest : public GroupTest {
 protected:
  /// Runs `body(group, bytes, root, seed)` with groups of 1, 2, 3, 5 and 8 ranks, several sizes and every second root.
  template <typename Body>
  static void for_sizes_and_roots(Body body) {
    for (int const size : {1, 2, 3, 5, 8}) {
      run_ranks(size, options(), [&](Group& group) {
        std::uint64_t seed = 1;
        for (std::size_t const bytes : kSizes) {
          for (int root = 0; root < size; root += 2) body(group, bytes, root, seed += 100);
        }
      });
    }
  }
  static std::uint64_t index(int rank) { return static_cast<std::uint64_t>(rank); }
};

TEST_P(CollectivesTest, BroadcastGivesEveryRankTheRootsBlock) {
  for_sizes_and_roots([](Group& group, std::size_t bytes, int root, std::uint64_t seed) {
    GuardedBytes block(bytes);
    auto const source = test_bytes(bytes, seed);
    if (group.rank() == root) std::copy(source.begin(), source.end(), block.span().begin());
    finish(group, group.broadcast(block.span(), root, kType));
    EXPECT_TRUE(same_bytes(block.span(), source) && block.is_guard_intact()) << bytes << " bytes from " << root;
  });
}

TEST_P(CollectivesTest, GatherBringsEveryBlockToTheRoot) {
  for_sizes_and_roots([](Group& group, std::size_t bytes, int root, std::uint64_t seed) {
    auto const block = test_bytes(bytes, seed + index(group.rank()));
    Blocks outputs(group.rank() == root ? group.size() : 0, bytes);
    finish(group, group.gather(block, outputs.spans(), root, kType));
    EXPECT_TRUE(outputs.hold(seed)) << bytes << " bytes to " << root;
  });
}

TEST_P(CollectivesTest, ScatterGivesEachRankItsBlock) {
  for_sizes_and_roots([](Group& group, std::size_t bytes, int root, std::uint64_t seed) {
    std::vector<std::vector<std::byte>> sources;
    std::vector<std::span<std::byte const>> sends;
    for (int peer = 0; peer < group.size() && group.rank() == root; ++peer) {
      sources.push_back(test_bytes(bytes, seed + index(peer)));
    }
    for (auto const& source : sources) sends.emplace_back(source);
    GuardedBytes output(bytes);
    finish(group, group.scatter(sends, output.span(), root, kType));
    EXPECT_TRUE(same_bytes(output.span(), test_bytes(bytes, seed + index(group.rank()))) && output.is_guard_intact())
        << bytes << " bytes from " << root;
  });
}

TEST_P(CollectivesTest, AllGatherBringsEveryBlockToEveryRank) {
  for_sizes_and_roots([](Group& group, std::size_t bytes, int, std::uint64_t seed) {
    auto const block = test_bytes(bytes, seed + index(group.rank()));
    Blocks outputs(group.size(), bytes);
    finish(group, group.all_gather(block, outputs.spans(), kType));
    EXPECT_TRUE(outputs.hold(seed)) << bytes << " bytes";
  });
}

TEST_P(CollectivesTest, NoRankLeavesABarrierBeforeTheLastHasCome) {
  constexpr int kSize = 5;
  std::atomic<int> entered{0};
  run_ranks(kSize, options(), [&](Group& group) {
    for (int round = 1; round <= 50; ++round) {
      ++entered;
      finish(group, group.barrier());
      EXPECT_GE(entered.load(), round * kSize);
    }
  });
}

TEST_P(CollectivesTest, SeveralCollectivesMayBeUnderWay) {
  run_ranks(4, options(), [](Group& group) {
    for (std::uint64_t round = 0; round < 10; ++round) {
      std::uint64_t const seed = round * 1000 + 1;
      int const root = static_cast<int>(round % 4);
      GuardedBytes broadcast_block(20000);
      auto const source = test_bytes(20000, seed);
      if (group.rank() == root) std::copy(source.begin(), source.end(), broadcast_block.span().begin());
      auto const gathered = test_bytes(300, seed + 100 + index(group.rank()));
      Blocks gather_outputs(group.rank() == root ? 4 : 0, 300), all_gather_outputs(4, 300);
      Exchange exchange(group.rank(), 4, round, uneven_sizes(round, 9000));

      std::vector<OperationPtr> operations;
      operations.push_back(group.broadcast(broadcast_block.span(), root, kType));
      operations.push_back(group.gather(gathered, gather_outputs.spans(), root, kType));
      operations.push_back(exchange.start(group));
      operations.push_back(group.all_gather(gathered, all_gather_outputs.spans(), kType));
      operations.push_back(group.barrier());
      for (auto operation = operations.rbegin(); operation != operations.rend(); ++operation) finish(group, *operation);

      EXPECT_TRUE(same_bytes(broadcast_block.span(), source));
      EXPECT_TRUE(gather_outputs.hold(seed + 100));
      EXPECT_TRUE(all_gather_outputs.hold(seed + 100));
      exchange.check();
    }
  });
}

TEST_P(CollectivesTest, ACollectiveWithoutARootIsAUsageError) {
  run_ranks(2, options(), [](Group& group) {
    std::vector<std::byte> block(4);
    EXPECT_THROW(group.broadcast(block, 2, kType), UsageError);
    EXPECT_THROW(group.broadcast(block, -1, kType), UsageError);
    EXPECT_THROW(group.gather(block, {}, 7, kType), UsageError);
    EXPECT_THROW(group.scatter({}, block, 7, kType), UsageError);
    EXPECT_THROW(group.all_gather(block, {}, kType), UsageError);
    if (group.rank() == 0) {
      EXPECT_THROW(group.gather(block, {}, 0, kType), UsageError);
      EXPECT_THROW(group.scatter({}, block, 0, kType), UsageError);
    }
    finish(group, group.barrier());
  });
}

HEADWAY_TEST_GROUPS(CollectivesTest);

}  // namespace
}  // namespace headway::comm
