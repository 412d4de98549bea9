// SPDX-License-Identifier: Apache-2.0

// Positions of fragments of exchanges of device memory. Needs no device.
//
// A block goes in fragments through slots in the receiver's device memory; a small one goes through a stage in host
// memory. A run is fragments in neighbouring slots that are copied at once. The receiver returns credit for slots by
// counting the fragments that it has consumed, in steps of kCreditStep. A route is the way of a large block: through
// slots, or directly into the output. add_channel() takes the bytes of a slot and the number of slots.

#include "device/peer_copy/layout.hpp"

#include "device/peer_copy/link.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

namespace headway::comm::peer_copy {
namespace {

using Range = std::pair<std::size_t, std::size_t>;  ///< Begin and end, in bytes.

void expect_apart(std::vector<Range> ranges, std::size_t limit) {
  std::ranges::sort(ranges);
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    EXPECT_LE(ranges[i].second, i + 1 < ranges.size() ? ranges[i + 1].first : limit) << "range " << i;
  }
}

TEST(LinkLayout, SlotsOfAllChannelsAreApart) {
  LinkLayout layout;
  layout.add_channel(1 << 20, 5);
  layout.add_channel(65'536, 3);
  layout.add_channel(4'000'768, 8);
  std::vector<Range> slots, host;
  for (auto const& channel : layout.channels) {
    host.emplace_back(channel.sync_offset, channel.sync_offset + sizeof(SyncWords));
    for (std::uint64_t fragment = 7; fragment < 7 + channel.num_slots; ++fragment) {
      slots.emplace_back(channel.slot_offset(fragment), channel.slot_offset(fragment) + channel.slot_bytes);
      host.emplace_back(channel.stage_offset(fragment), channel.stage_offset(fragment) + kStageBytes);
    }
  }
  expect_apart(slots, layout.device_bytes);
  expect_apart(host, layout.host_bytes);
}

TEST(LinkLayout, SharedSlotsHoldABlockOfEachSourceSideBySide) {
  constexpr int kRanks = 3;
  auto const layout = LinkLayout::of_shared_slots(1024, 4, kRanks);
  auto const& channel = layout.channels.front();
  std::vector<Range> blocks;
  for (std::uint64_t slot = 0; slot < 4; ++slot) {
    for (std::size_t source = 0; source < kRanks; ++source) {
      std::size_t const begin = channel.slot_offset(slot) + source * layout.source_stride;
      blocks.emplace_back(begin, begin + 1024);
    }
  }
  expect_apart(blocks, layout.device_bytes);
  EXPECT_EQ(channel.slot_offset(4), channel.slot_offset(0));
}

TEST(ChannelLayout, FragmentsCoverABlock) {
  LinkLayout layout;
  layout.add_channel(std::size_t{8} << 20, 8);
  layout.add_channel(65'536, 8);
  for (auto const& channel : layout.channels) {
    EXPECT_EQ(channel.num_fragments(0), 1U);  // An empty block is a message, too.
    for (std::size_t const size : {1UL, 65'536UL, 65'537UL, 8'388'608UL, 8'388'609UL, 30'000'001UL, 134'217'728UL}) {
      std::uint64_t const count = channel.num_fragments(size);
      EXPECT_GE(count * channel.slot_bytes, size) << size;
      EXPECT_LT((count - 1) * channel.slot_bytes, size) << size;
    }
  }
}

TEST(ChannelLayout, PartsOfABlockFollowEachOther) {
  LinkLayout layout;
  layout.add_channel(std::size_t{16} << 20, 5);
  auto const& channel = layout.channels.front();
  for (std::size_t const size : {0UL, 1UL, 4'194'305UL, 134'217'728UL}) {
    auto const count = channel.num_fragments(size);
    std::size_t end = 0;
    for (std::uint64_t i = 0; i < count; ++i) {
      auto const part = channel.part(size, count, i);
      EXPECT_EQ(part.offset, end) << size;
      end += part.num_bytes;
    }
    EXPECT_EQ(end, size);
  }
  EXPECT_EQ(channel.part(134'217'728, 1, 0).num_bytes, 134'217'728U);  // A block that is not cut.
}

TEST(ChannelLayout, RunsOfFragmentsAreSideBySideAndLeaveRoom) {
  for (std::uint64_t const num_slots : {8, 12, 20}) {
    LinkLayout layout;
    layout.add_channel(std::size_t{8} << 20, num_slots);
    auto const& channel = layout.channels.front();
    for (std::size_t const size : {0UL, 1UL, 8'388'609UL, 30'000'001UL, 134'217'728UL, 1'000'000'001UL}) {
      auto const count = channel.num_fragments(size);
      for (std::uint64_t first = 0; first < num_slots; ++first) {
        std::size_t end = 0;
        std::uint64_t num_runs = 0;
        for (std::uint64_t i = 0; i < count; ++num_runs) {
          auto const run = channel.run(count, first, i);
          auto const part = channel.part(size, count, i, run);
          ASSERT_GE(run, 1U);
          ASSERT_LT(run + kCreditStep - 1, num_slots);  // A receiver may owe the credit for all other slots.
          EXPECT_EQ(part.offset, end) << size;
          EXPECT_LE(channel.slot_offset(first + i) + part.num_bytes, layout.device_bytes) << size;
          end += part.num_bytes;
          i += run;
        }
        EXPECT_EQ(end, size);
        EXPECT_GE(num_runs, std::min<std::uint64_t>(count, 2)) << size;
      }
    }
  }
}

TEST(ChannelLayout, ARunIsHalfOfTheBlockAndOfTheSlots) {
  LinkLayout layout;
  layout.add_channel(std::size_t{8} << 20, 8);
  auto const& channel = layout.channels.front();
  EXPECT_EQ(channel.run(16, 0, 0), 4U);
  EXPECT_EQ(channel.run(16, 3, 5), 4U);
  EXPECT_EQ(channel.run(3, 0, 0), 2U);
  EXPECT_EQ(channel.run(16, 6, 0), 2U);                                      // Up to the last slot.
  EXPECT_EQ(LinkLayout::of_shared_slots(512, 1, 2).of(0).run(1, 5, 0), 1U);  // Shared slots: runs of one.
}

TEST(RouteChoice, IsOfWhoeverComesFirst) {
  RouteChoice choice{};
  EXPECT_EQ(choice.choose(0, Route::kSlots), Route::kSlots);
  EXPECT_EQ(choice.choose(0, Route::kDirectly), Route::kSlots);
  EXPECT_FALSE(choice.is_chosen(SyncWords::kNumDescriptors));
  EXPECT_EQ(choice.choose(SyncWords::kNumDescriptors, Route::kDirectly),
            Route::kDirectly);  // The next message with the same descriptor.
  EXPECT_EQ(choice.choose(SyncWords::kNumDescriptors, Route::kSlots), Route::kDirectly);
  EXPECT_TRUE(choice.is_chosen(SyncWords::kNumDescriptors));
}

TEST(RouteChoice, IsOneWhenBothComeAtTheSameTime) {
  constexpr std::uint64_t kMessages = 20'000;
  RouteChoice choice{};
  std::vector<Route> of_sender, of_receiver;
  std::barrier both(2);
  auto const choose_all = [&](std::vector<Route>& routes, Route own) {
    for (std::uint64_t number = 0; number < kMessages; ++number) {
      both.arrive_and_wait();
      routes.push_back(choice.choose(number, own));
    }
  };
  {
    std::jthread const sender([&] { choose_all(of_sender, Route::kSlots); });
    choose_all(of_receiver, Route::kDirectly);
  }
  EXPECT_EQ(of_sender, of_receiver);
}

}  // namespace
}  // namespace headway::comm::peer_copy
