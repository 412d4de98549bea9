// SPDX-License-Identifier: Apache-2.0

// Exchanges of device memory between ranks that are threads and share the first GPU. The bound (max_lag) says how many
// exchanges a rank may run ahead of its peers.

#include "headway/comm/device_group.hpp"

#include "headway/comm/device_memory.hpp"
#include "test_bytes.hpp"
#include "test_gpu.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace headway::comm {
namespace {

constexpr int kRanks = 2;

/// Ranks that are threads, each with a group, a device group and a stream.
class DeviceGroupTest : public GpuTest {
 protected:
  /// Objects of one rank.
  struct Rank {
    std::unique_ptr<Group> group;
    std::unique_ptr<DeviceGroup> device;
    DeviceStream stream;  ///< A stream per rank. On the default stream the ranks would wait for each other.
  };

  /// Calls `body` on each rank, and rethrows the error of a rank.
  void on_each_rank(GroupOptions options, DeviceOptions const& device, std::function<void(Rank&)> const& body) {
    MemoryStore store;
    options.transport = Transport::kInproc;
    options.name = "test";
    options.timeout = options.connect_timeout = std::chrono::seconds(20);
    std::vector<std::exception_ptr> errors(kRanks);
    {
      std::vector<std::jthread> threads;
      for (int rank = 0; rank < kRanks; ++rank) {
        threads.emplace_back([&, rank] {
          try {
            gpu_.use_in_this_thread();
            Rank own{.group = Group::connect(rank, kRanks, store, options), .device = nullptr, .stream = gpu_.stream()};
            own.device = DeviceGroup::make(*own.group, device);
            body(own);
            gpu_.finish(own.stream);
            leave_together(own);
          } catch (...) {
            errors[static_cast<std::size_t>(rank)] = std::current_exception();
          }
        });
      }
    }
    for (auto const& error : errors) {
      if (error) std::rethrow_exception(error);
    }
  }

  /// Leaves the group when all ranks are done. A rank that leaves earlier fails the ranks that still need it.
  static void leave_together(Rank& own) {
    try {
      static_cast<void>(own.group->wait(*own.group->barrier()));
    } catch (OperationError const&) {  // The test has made the group fail.
    }
    own.device.reset();
  }

  /// Contents of the block from `source` to `destination` in exchange `number`.
  static std::vector<std::byte> block(int source, int destination, std::size_t size, int number) {
    return test_bytes(size, static_cast<unsigned>(number * 100 + source * 10 + destination));
  }
};

TEST_F(DeviceGroupTest, BlocksOfAllSizesArriveUnderABound) {
  GroupOptions options;
  options.max_lag = 2;
  on_each_rank(options, {.slot_bytes = 1 << 20}, [&](Rank& own) {
    int const rank = own.group->rank();
    int number = 0;
    for (std::size_t const size : {0U, 1U, 65'536U, 65'537U, 5'000'001U, 7U, 1'000'000U, 3U, 3U}) {
      auto const size_to = [&](int source, int destination) {
        return size == 0 ? 0 : size + static_cast<std::size_t>(source + 2 * destination);
      };
      std::vector<std::span<std::byte const>> sends;
      std::vector<std::span<std::byte>> receives;
      for (int peer = 0; peer < kRanks; ++peer) {
        auto const source = gpu_.allocate(size_to(rank, peer) + 1).first(size_to(rank, peer));
        if (!source.empty()) gpu_.write(source, block(rank, peer, source.size(), number));
        sends.push_back(source);
        receives.push_back(gpu_.allocate(size_to(peer, rank) + 1).first(size_to(peer, rank)));
      }
      auto const operation =
          own.device->all_to_all_v({.sends = sends, .receives = receives}, {.stream = own.stream, .timeout = {}});
      operation->join(own.stream);
      gpu_.finish(own.stream);
      EXPECT_TRUE(operation->done());
      for (int peer = 0; peer < kRanks; ++peer) {
        auto const& output = receives[static_cast<std::size_t>(peer)];
        if (output.empty()) continue;
        EXPECT_TRUE(same_bytes(gpu_.read(output), block(peer, rank, output.size(), number)))
            << size << " bytes from rank " << peer;
      }
      ++number;
    }
  });
}

// Outputs in memory of allocate_device_memory() are mapped by the senders, which write into them directly.
TEST_F(DeviceGroupTest, SendersWriteIntoMemoryThatTheyWereOffered) {
  constexpr std::size_t kBytes = 300'000, kStride = 1 << 20;
  GroupOptions options;
  options.max_lag = 1;
  std::atomic<std::uint64_t> copies = 0;
  on_each_rank(options, {}, [&](Rank& own) {
    int const rank = own.group->rank();
    auto const source = gpu_.allocate(kBytes);
    auto* const memory = static_cast<std::byte*>(allocate_device_memory(0, kRanks * kStride));
    std::vector<std::span<std::byte const>> const sends(kRanks, source);
    std::vector<std::span<std::byte>> receives;
    for (std::size_t peer = 0; peer < kRanks; ++peer) receives.emplace_back(memory + peer * kStride, kBytes);
    for (int number = 0; number < 20; ++number) {
      gpu_.write(source, block(rank, 0, kBytes, number));
      auto const operation =
          own.device->all_to_all_v({.sends = sends, .receives = receives}, {.stream = own.stream, .timeout = {}});
      operation->join(own.stream);
      gpu_.finish(own.stream);
      for (int peer = 0; peer < kRanks; ++peer) {
        auto const got = gpu_.read(receives[static_cast<std::size_t>(peer)]);
        EXPECT_TRUE(same_bytes(got, block(peer, 0, kBytes, number))) << number << " of rank " << peer;
      }
    }
    static_cast<void>(own.group->wait(*own.group->barrier()));
    copies += own.device->stats().local_copies;
    free_device_memory(memory);
    EXPECT_THROW(free_device_memory(memory), UsageError);
  });
  // The ranks share a device, so each block is copied inside it. The block of the earlier rank of a pair may be copied
  // twice.
  EXPECT_GE(copies, 20U * 4);
  EXPECT_LE(copies, 20U * 5);
}

// A caller leases a slot from take() to release(). Peers write into it only while it is free.
TEST_F(DeviceGroupTest, SlotsAreWrittenAgainWhenTheirLeaseHasEnded) {
  on_each_rank({}, {}, [&](Rank& own) {
    int const rank = own.group->rank();
    auto const slots = own.device->make_slots({.block_bytes = 4096, .num_slots = 2});
    auto const source = gpu_.allocate(4096);
    std::vector<std::span<std::byte const>> const sends(kRanks, source);
    std::vector<std::size_t> const received(kRanks, 4096);
    for (int number = 0; number < 7; ++number) {
      gpu_.write(source, block(rank, 0, 4096, number));
      auto const slot = slots->take(own.stream);
      slots->all_to_all_v(slot.seq, sends, received, /*type=*/0, {.stream = own.stream, .timeout = {}})
          ->join(own.stream);
      gpu_.finish(own.stream);
      for (int peer = 0; peer < kRanks; ++peer) {
        if (peer == rank) continue;
        auto const got = gpu_.read(slot.memory.subspan(static_cast<std::size_t>(peer) * 4096, 4096));
        EXPECT_TRUE(same_bytes(got, block(peer, 0, 4096, number))) << number << " of rank " << peer;
      }
      slots->release(slot.seq, std::vector<DeviceStream>{own.stream});
    }
    auto const slot = slots->take(own.stream);
    EXPECT_THROW(static_cast<void>(slots->take(own.stream)), UsageError);
    slots->release(slot.seq, {});
    EXPECT_EQ(slots->take(own.stream).seq, slot.seq);
  });
}

TEST_F(DeviceGroupTest, AnAbortLetsStreamsThatWaitGoOn) {
  on_each_rank({}, {}, [&](Rank& own) {
    auto const memory = gpu_.allocate(64);
    std::vector<std::span<std::byte const>> const sends(kRanks, memory.first(8));
    std::vector<std::span<std::byte>> const receives(kRanks, memory.last(8));
    auto const exchange = [&] {
      return own.device->all_to_all_v({.sends = sends, .receives = receives}, {.stream = own.stream, .timeout = {}});
    };
    exchange()->join(own.stream);
    gpu_.finish(own.stream);
    if (own.group->rank() == 0) {
      own.group->admin().abort("enough");
      return;
    }
    try {
      auto const operation = exchange();  // Rank 0 takes no part.
      operation->join(own.stream);
      gpu_.finish(own.stream);
      EXPECT_EQ(operation->status().code(), StatusCode::kAborted);
    } catch (OperationError const& error) {  // The failure was known before the start.
      EXPECT_NE(std::string(error.what()).find("enough"), std::string::npos);
    }
  });
}

}  // namespace
}  // namespace headway::comm
