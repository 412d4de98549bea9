// SPDX-License-Identifier: Apache-2.0

// HostProxy: exchanges of device memory between hosts, without a device.
//
// A message goes in fragments through slots in host memory, a small one through a stage. A stream of the sender fills
// slots, the proxy of each host moves them over the group, and a stream of the receiver empties them.
//
// Threads of the test play the streams: they fill slots and raise `arrived`, or wait for it and raise `consumed`,
// with the memory order that a device would have. The proxy cannot tell the difference, so its whole protocol runs on
// any host: several peers, channels and directions at once, messages in stages and in slots, and disagreements.

#include "device/peer_copy/host_proxy.hpp"

#include "headway/comm/group.hpp"
#include "ranks_as_threads.hpp"
#include "test_bytes.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace headway::comm::peer_copy {
namespace {

constexpr int kChannels = 2;
constexpr std::size_t kSlotBytes = std::size_t{128} * 1024;
constexpr std::uint64_t kSlots = 5;

/// Message sizes: up to kStageBytes in a stage, zero, and several fragments in slots, the last one short.
std::size_t size_of(std::uint64_t message) {
  constexpr std::array<std::size_t, 5> kSizes{7, 3 * kSlotBytes, kStageBytes, 0, 2 * kSlotBytes + 4097};
  return kSizes[message % kSizes.size()];
}

HostProxy::Message message_of(std::uint64_t number, std::uint64_t first_fragment) {
  LinkLayout layout;
  layout.add_channel(kSlotBytes, kSlots);
  auto const size = size_of(number);
  return {.descriptor = {.size_bytes = size, .match = number, .data_type = 1, .verb = Verb::kAllToAll},
          .first_fragment = first_fragment,
          .num_fragments = layout.of(0).num_fragments(size),
          .is_staged = size <= kStageBytes};
}

/// Memory that a rank shares with a peer on another host. Threads act as the streams of a device: they wait for
/// sync_words(), which the proxy writes, and write stream_sync_words(), which the proxy reads.
class End {
 public:
  End(int rank, int peer) : rank_(rank), peer_(peer) {
    LinkLayout layout;
    for (int channel = 0; channel < kChannels; ++channel) layout.add_channel(kSlotBytes, kSlots);
    for (auto& each : memory_) each.reset(allocate(RemoteMemory::total_bytes(layout)));
    remote_ = std::make_shared<RemoteMemory>(
        RemoteMemory{.layout = layout, .incoming = memory_[0].get(), .outgoing = memory_[1].get()});
  }

  /// Adds `message` to the proxy's queue of this peer and channel.
  void hand_to(HostProxy& proxy, int channel, bool is_send, HostProxy::Message const& message) const {
    proxy.add(remote_, {.peer = peer_, .channel = channel, .is_send = is_send}, message);
  }

  /// Plays the sender's stream: fills fragments, then raises `arrived` with release order.
  void send(int channel, HostProxy::Message const& message) const {
    auto const bytes = content(rank_, channel, message);
    for (auto number = message.first_fragment; number < message.first_fragment + message.num_fragments; ++number) {
      if (number >= kSlots) await(remote_->sync_words(channel).consumed, number + 1 - kSlots);
      std::ranges::copy(part(bytes, channel, message, number),
                        remote_->fragment(/*is_incoming=*/false, channel, number, message.is_staged));
      remote_->stream_sync_words(channel).arrived.store(number + 1, std::memory_order_release);
    }
  }

  /// Plays the receiver's stream: waits for each fragment, checks it, and returns credit every kCreditStep fragments.
  void receive(int channel, HostProxy::Message const& message) const {
    auto const bytes = content(peer_, channel, message);
    for (auto number = message.first_fragment; number < message.first_fragment + message.num_fragments; ++number) {
      await(remote_->sync_words(channel).arrived, number + 1);
      auto const expected = part(bytes, channel, message, number);
      std::span const came(remote_->fragment(/*is_incoming=*/true, channel, number, message.is_staged),
                           expected.size());
      EXPECT_TRUE(same_bytes(came, expected)) << "fragment " << number << " from rank " << peer_;
      if ((number + 1) % kCreditStep != 0) continue;
      remote_->stream_sync_words(channel).consumed.store(number + 1, std::memory_order_release);
    }
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };

  static std::byte* allocate(std::size_t num_bytes) {
    constexpr std::size_t kPage = 4096;
    std::size_t const rounded = (num_bytes + kPage - 1) / kPage * kPage;
    auto* const memory = static_cast<std::byte*>(std::aligned_alloc(kPage, rounded));
    std::fill_n(memory, rounded, std::byte{0});
    return memory;
  }
  static std::vector<std::byte> content(int source, int channel, HostProxy::Message const& message) {
    return test_bytes(message.descriptor.size_bytes,
                      message.descriptor.match * 100 + static_cast<std::uint64_t>(source * 10 + channel));
  }
  [[nodiscard]] std::span<std::byte const> part(std::span<std::byte const> bytes, int channel,
                                                HostProxy::Message const& message, std::uint64_t number) const {
    if (message.num_fragments == 1) return bytes;
    auto const each = remote_->layout.of(channel).slot_bytes;
    auto const offset = (number - message.first_fragment) * each;
    return bytes.subspan(offset, std::min(each, bytes.size() - offset));
  }
  static void await(std::atomic<std::uint64_t> const& word, std::uint64_t value) {
    Deadline const deadline = Clock::now() + std::chrono::seconds(60);
    while (word.load(std::memory_order_acquire) < value) {
      if (Clock::now() > deadline) throw std::runtime_error("nothing came for a minute");
      std::this_thread::yield();
    }
  }

  int rank_, peer_;
  std::array<std::unique_ptr<std::byte, Free>, 2> memory_;
  std::shared_ptr<RemoteMemory> remote_;
};

/// Host proxies between ranks that share no memory.
class HostProxyTest : public GroupTest {
 protected:
  /// Message of the group's failure; empty if it does not fail in time.
  static std::string failure_of(Group& group) {
    Deadline const deadline = Clock::now() + std::chrono::seconds(20);
    while (group.monitor().health().ok() && Clock::now() < deadline) std::this_thread::yield();
    return std::string(group.monitor().health().message());
  }
};

TEST_P(HostProxyTest, MessagesOfAllPeersAndChannelsArriveWhole) {
  std::vector<HostProxy::Message> messages;  // Enough messages to use each slot several times.
  for (std::uint64_t number = 0, fragment = 0; number < 20; ++number) {
    messages.push_back(message_of(number, fragment));
    fragment += messages.back().num_fragments;
  }
  run_ranks(3, options(), [&](Group& group) {
    std::vector<std::unique_ptr<End>> ends;
    for (int peer = 0; peer < group.size(); ++peer) {
      if (peer != group.rank()) ends.push_back(std::make_unique<End>(group.rank(), peer));
    }
    {
      HostProxy proxy(group);
      for (auto const& end : ends) {
        for (int channel = 0; channel < kChannels; ++channel) {
          for (auto const& message : messages) {
            end->hand_to(proxy, channel, true, message);
            end->hand_to(proxy, channel, false, message);
          }
        }
      }
      run_threads(static_cast<int>(ends.size()) * kChannels * 2, [&](int number) {
        auto const& end = *ends[static_cast<std::size_t>(number / kChannels / 2)];
        int const channel = number / 2 % kChannels;
        for (auto const& message : messages) {
          number % 2 == 0 ? end.send(channel, message) : end.receive(channel, message);
        }
      });
    }  // Everything sent has gone out, so the rank may leave.
    EXPECT_TRUE(group.wait(*group.barrier()).ok());
  });
}

TEST_P(HostProxyTest, ItEndsWithItsGroup) {
  run_ranks(2, options(), [](Group& group) {
    End const end(group.rank(), 1 - group.rank());
    HostProxy proxy(group);
    for (bool const is_send : {true, false}) end.hand_to(proxy, 0, is_send, message_of(0, 0));  // No message will come.
    if (group.rank() == 0) group.admin().abort("no more");
    EXPECT_NE(failure_of(group).find("no more"), std::string::npos);
  });
}

TEST_P(HostProxyTest, ADisagreementNamesWhatBothMean) {
  /// A disagreement and a part of its error text.
  struct Case {
    MessageDescriptor sent, expected;
    std::string text;
  };
  std::vector<Case> const cases{
      {{.size_bytes = 8, .match = 5, .data_type = 1, .verb = Verb::kSend},
       {.size_bytes = 8, .match = 6, .data_type = 1, .verb = Verb::kSend},
       "rank 0 sends 8 bytes of type 1 in send 5 to rank 1, which expects 8 bytes of type 1 in send 6"},
      {{.size_bytes = 8, .match = 5, .data_type = 1, .verb = Verb::kSend},
       {.size_bytes = 12, .match = 5, .data_type = 1, .verb = Verb::kSend},
       "rank 0 sends 8 bytes of type 1 in send 5 to rank 1, which expects 12 bytes of type 1 in send 5"},
      // Messages with the same first fragments.
      {{.size_bytes = 5 * kSlotBytes, .match = 5, .data_type = 1, .verb = Verb::kAllToAll},
       {.size_bytes = 4 * kSlotBytes, .match = 5, .data_type = 1, .verb = Verb::kAllToAll},
       "which expects " + std::to_string(4 * kSlotBytes) + " bytes"},
      {{.size_bytes = 8, .match = 5, .data_type = 1, .verb = Verb::kBroadcast},
       {.size_bytes = 8, .match = 5, .data_type = 1, .verb = Verb::kScatter},
       "in broadcast 5"}};
  for (auto const& each : cases) {
    run_ranks(2, options(), [&](Group& group) {
      End const end(group.rank(), 1 - group.rank());
      HostProxy proxy(group);
      bool const is_send = group.rank() == 0;
      auto const& descriptor = is_send ? each.sent : each.expected;
      LinkLayout layout;
      layout.add_channel(kSlotBytes, kSlots);
      end.hand_to(proxy, 0, is_send,
                  {.descriptor = descriptor,
                   .first_fragment = 0,
                   .num_fragments = layout.of(0).num_fragments(descriptor.size_bytes),
                   .is_staged = descriptor.size_bytes <= kStageBytes});
      auto const text = failure_of(group);
      EXPECT_NE(text.find(each.text), std::string::npos) << text;
    });
  }
}

HEADWAY_TEST_GROUPS(HostProxyTest);

}  // namespace
}  // namespace headway::comm::peer_copy
