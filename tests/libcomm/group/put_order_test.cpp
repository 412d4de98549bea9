// SPDX-License-Identifier: Apache-2.0

// Order in which a rank puts its own RTS, its answers to a peer's RTS, and large blocks. The tests play the peer.
//
// The transport has no get. So a receiver answers an RTS by opening a window and sending a tag on
// kRendezvousReadyChannel, and the sender puts the block there. Channel 0 is that of the exchanges: their RTS and small
// blocks.

#include "channel/message_header.hpp"
#include "channel/receive_layout.hpp"
#include "group/group_impl.hpp"
#include "test_bytes.hpp"
#include "transport/inproc/endpoint.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace headway::comm {
namespace {

constexpr std::size_t kLarge = 4096, kSlot = 1024;

/// Channels of the tags in the order of their arrival.
class ChannelSink final : public ArrivalSink {
 public:
  void arrived(int /*source*/, Tag tag) override { channels.push_back(tag.channel); }
  void on_oob(int /*peer*/, std::string_view /*text*/) override {}
  void lost(int /*peer*/, std::string_view /*reason*/) override {}

  std::vector<std::uint8_t> channels;
};

/// Rank 1 is a group. Rank 0, its only peer, is an endpoint that the tests drive by hand.
class PutOrderTest : public testing::Test {
 protected:
  PutOrderTest() {
    auto endpoints = make_inproc_endpoints(2, layout_.total_bytes(), {.can_get = false, .can_put_to_window = true});
    peer_ = std::move(endpoints[0]);
    group_ = std::make_unique<GroupImpl>(std::move(endpoints[1]), options_, layout_, nullptr);
  }

  static GroupOptions options() {
    GroupOptions options;
    options.transport = Transport::kInproc;
    options.max_lag_limit = 0;
    options.slot_bytes = kSlot;
    return options;
  }

  /// Puts the peer's message of an exchange with blocks of `size` bytes: the block itself, or an RTS of it.
  void put_message(std::uint16_t operation, std::size_t size) {
    bool const fits = size <= kSlot;
    MessageHeader const header{
        .size_bytes = size, .operation = operation, .kind = fits ? MessageKind::kEager : MessageKind::kRts};
    auto const payload = std::span<std::byte const>(block_).first(fits ? size : 0);
    std::uint64_t const slot = layout_.ring_slot(/*source=*/0, /*channel=*/0, operation);
    ASSERT_TRUE(
        peer_->put({.peer = 1, .offset = slot}, header.bytes(/*is_timed=*/false), payload, {.operation = operation})
            .ok());
    peer_->submit();
  }
  /// Starts the group's exchange of blocks of `size` bytes.
  OperationPtr start(std::size_t size) {
    std::vector<std::span<std::byte const>> const sends{std::span(block_).first(size), std::span(block_).first(size)};
    std::vector<std::span<std::byte>> const receives{std::span(received_).first(size), std::span(own_).first(size)};
    return group_->all_to_all_v({.sends = sends, .receives = receives});
  }
  /// Position of the first tag of `channel` among the group's puts.
  std::ptrdiff_t position_of(std::uint8_t channel) {
    peer_->poll(arrived_);
    return std::ranges::find(arrived_.channels, channel) - arrived_.channels.begin();
  }
  [[nodiscard]] std::ptrdiff_t num_arrived() const { return std::ssize(arrived_.channels); }

  GroupOptions options_ = options();
  ReceiveLayout layout_ = ReceiveLayout::of(2, options_);
  std::unique_ptr<Endpoint> peer_;
  std::unique_ptr<GroupImpl> group_;
  ChannelSink arrived_;
  std::vector<std::byte> block_ = test_bytes(kLarge, 1), received_ = std::vector<std::byte>(kLarge), own_ = received_;
};

// To offer a block is to send its RTS.
TEST_F(PutOrderTest, ARankThatComesSecondOffersBeforeItAnswers) {
  put_message(0, 8);
  put_message(1, kLarge);
  auto const first = start(8);
  ASSERT_TRUE(group_->test(*first));  // The group has seen the RTS of the next exchange too.
  ASSERT_EQ(position_of(0), 0);
  arrived_.channels.clear();
  auto const second = start(kLarge);
  EXPECT_EQ(position_of(0), 0);
  EXPECT_EQ(position_of(kRendezvousReadyChannel), 1);
  EXPECT_EQ(num_arrived(), 2);
}

TEST_F(PutOrderTest, AnAnswerGoesBeforeABlockThatTakesLong) {
  auto const operation = start(kLarge);
  std::vector<std::byte> output(kLarge);
  ASSERT_TRUE(peer_->open_window(1, 1, output));  // Window of transfer 0.
  ASSERT_TRUE(peer_->put({.peer = 1}, {}, {}, {.channel = kRendezvousReadyChannel}).ok());
  put_message(0, kLarge);
  group_->test(*operation);
  EXPECT_EQ(position_of(kRendezvousReadyChannel), 1);  // After the group's own RTS.
  EXPECT_EQ(position_of(kRendezvousDataChannel), 2);
  EXPECT_EQ(output, block_);
}

}  // namespace
}  // namespace headway::comm
