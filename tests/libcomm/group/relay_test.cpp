#include "engines/nvlink/relay.hpp"

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

namespace headway::comm::nvlink {
namespace {

constexpr int kChannels = 2;
constexpr std::size_t kSlotBytes = std::size_t{128} * 1024;
constexpr std::uint64_t kSlots = 5;

bool is_staged(std::size_t size) { return size <= kStageBytes; }

/// A few bytes in a stage, several in a slot, nothing at all.
std::size_t size_of(std::uint64_t number) {
  constexpr std::array<std::size_t, 5> kSizes{7, kSlotBytes, kStageBytes, 0, kStageBytes + 1};
  return kSizes[number % kSizes.size()];
}

/// A rank's end of what it shares with a peer on another host. Threads do here what streams of a device do.
class End {
 public:
  End(int rank, int peer) : rank_(rank), peer_(peer) {
    LinkLayout layout;
    for (int channel = 0; channel < kChannels; ++channel) layout.add_channel(kSlotBytes, kSlots);
    for (auto& each : memory_) each.reset(allocate(RemoteMemory::total_bytes(layout)));
    remote_ = std::make_shared<RemoteMemory>(
        RemoteMemory{.layout = layout, .incoming = memory_[0].get(), .outgoing = memory_[1].get()});
  }

  [[nodiscard]] std::shared_ptr<RemoteMemory const> remote() const { return remote_; }
  void hand_to(Relay& relay, int channel, std::uint64_t number) const {
    Relay::Fragment const fragment{
        .number = number, .num_bytes = size_of(number), .is_staged = is_staged(size_of(number)), .data_type = 1};
    relay.add(remote_, peer_, channel, true, fragment);
    relay.add(remote_, peer_, channel, false, fragment);
  }

  void send(int channel, std::uint64_t number) const {
    if (number >= kSlots) await(remote_->board(channel).consumed, number + 1 - kSlots);
    auto const bytes = content(rank_, channel, number);
    std::ranges::copy(bytes, remote_->fragment(false, channel, number, is_staged(bytes.size())));
    remote_->stream_board(channel).arrived.store(number + 1, std::memory_order_release);
  }

  void receive(int channel, std::uint64_t number) const {
    await(remote_->board(channel).arrived, number + 1);
    auto const expected = content(peer_, channel, number);
    std::span const came(remote_->fragment(true, channel, number, is_staged(expected.size())), expected.size());
    EXPECT_TRUE(same_bytes(came, expected)) << "fragment " << number << " from rank " << peer_;
    if ((number + 1) % kCreditStep != 0) return;
    remote_->stream_board(channel).consumed.store(number + 1, std::memory_order_release);
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
  static std::vector<std::byte> content(int source, int channel, std::uint64_t number) {
    return test_bytes(size_of(number), number * 100 + static_cast<std::uint64_t>(source * 10 + channel));
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

class RelayTest : public GroupTest {};

TEST_P(RelayTest, FragmentsOfAllPeersAndChannelsArriveInOrder) {
  constexpr std::uint64_t kFragments = 40;  // Each slot is used several times.
  run_ranks(3, options(), [](Group& group) {
    std::vector<std::unique_ptr<End>> ends;
    for (int peer = 0; peer < group.size(); ++peer) {
      if (peer != group.rank()) ends.push_back(std::make_unique<End>(group.rank(), peer));
    }
    {
      Relay relay(group);
      for (auto const& end : ends) {
        for (int channel = 0; channel < kChannels; ++channel) {
          for (std::uint64_t i = 0; i < kFragments; ++i) end->hand_to(relay, channel, i);
        }
      }
      run_threads(static_cast<int>(ends.size()) * kChannels * 2, [&](int number) {
        auto const& end = *ends[static_cast<std::size_t>(number / kChannels / 2)];
        int const channel = number / 2 % kChannels;
        for (std::uint64_t i = 0; i < kFragments; ++i) {
          number % 2 == 0 ? end.send(channel, i) : end.receive(channel, i);
        }
      });
    }  // All that was sent has gone, so the rank may leave.
    EXPECT_TRUE(group.wait(*group.barrier()).ok());
  });
}

TEST_P(RelayTest, ItEndsWithItsGroup) {
  run_ranks(2, options(), [](Group& group) {
    End const end(group.rank(), 1 - group.rank());
    Relay relay(group);
    end.hand_to(relay, 0, 0);  // Of which nothing will come.
    if (group.rank() == 0) group.abort("no more");
    Deadline const deadline = Clock::now() + std::chrono::seconds(20);
    while (group.health().ok() && Clock::now() < deadline) std::this_thread::yield();
    EXPECT_EQ(group.health().code(), StatusCode::kAborted);
  });
}

TEST_P(RelayTest, ADisagreementNamesBothSizes) {
  run_ranks(2, options(), [](Group& group) {
    End const end(group.rank(), 1 - group.rank());
    Relay relay(group);
    bool const is_send = group.rank() == 0;
    relay.add(end.remote(), 1 - group.rank(), 0, is_send,
              {.number = 0, .num_bytes = is_send ? 8U : 16U, .is_staged = true, .data_type = 1});
    if (is_send) end.send(0, 0);
    Deadline const deadline = Clock::now() + std::chrono::seconds(20);
    while (group.health().ok() && Clock::now() < deadline) std::this_thread::yield();
    std::string const text(group.health().message());
    EXPECT_NE(text.find("8 bytes"), std::string::npos) << text;
    EXPECT_NE(text.find("16"), std::string::npos) << text;
  });
}

HEADWAY_TEST_GROUPS(RelayTest);

}  // namespace
}  // namespace headway::comm::nvlink
