// SPDX-License-Identifier: Apache-2.0

// Ranks exchange descriptors of their memory without taking turns. Needs no device.
//
// Each rank sends a hello to its peers, which names its mailbox (a datagram socket). A peer that has the hello sends
// its two descriptors there. A set is one shared memory of the ranks; its number is equal on all of them. Waits call a
// callback several times a second, which may throw to end them.

#include "device/peer_copy/ipc_exchange.hpp"

#include "headway/comm/status.hpp"

#include <gtest/gtest.h>

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <stdexcept>
#include <string>

namespace headway::comm::peer_copy {
namespace {

constexpr auto kPatience = std::chrono::seconds(20);
constexpr int kSet = 3;

Deadline soon() { return Clock::now() + std::chrono::milliseconds(50); }
Deadline later() { return Clock::now() + kPatience; }
void never_give_up() {}

/// A rank with one memory file, which it sends to each peer. The size of the file encodes the rank.
struct Rank {
  explicit Rank(int number) : rank(number), file(::memfd_create("headway-test", MFD_CLOEXEC)) {}

  /// Hands the descriptors for `peer` to the exchange, which sends them once the peer's hello has come.
  void share_with(Rank& peer) {
    EXPECT_EQ(::ftruncate(file.get(), rank * 10 + 1), 0);
    ipc_exchange.send_descriptors(kSet, peer.rank, {file.get(), file.get()});
  }
  /// Delivers this rank's hello to `peer`.
  void greet(Rank& peer) {
    peer.ipc_exchange.on_oob(rank, ipc_exchange.greeting(peer.rank, {.set = kSet, .slot_bytes = 77}));
  }
  [[nodiscard]] int owner_of_memory_from(Rank const& peer, Deadline deadline) {
    auto const descriptors = ipc_exchange.await_descriptors(kSet, peer.rank, deadline, never_give_up);
    struct stat status {};
    EXPECT_EQ(::fstat(descriptors[1].get(), &status), 0);
    return static_cast<int>(status.st_size / 10);
  }

  int rank;
  base::FileDescriptor file;
  IpcExchange ipc_exchange;
};

TEST(IpcExchange, MemoryComesWithoutACallOfItsOwner) {
  Rank first(1), second(2);
  first.share_with(second);
  first.greet(second);  // After that, rank 1 makes no further call.
  second.greet(first);
  EXPECT_EQ(second.ipc_exchange.await_hello(kSet, 1, later(), never_give_up).slot_bytes, 77U);
  EXPECT_EQ(second.owner_of_memory_from(first, later()), 1);
}

TEST(IpcExchange, MemorySharedAfterAHelloComesAtOnce) {
  Rank first(1), second(2);
  second.greet(first);
  first.greet(second);
  first.share_with(second);
  EXPECT_EQ(second.owner_of_memory_from(first, later()), 1);
}

TEST(IpcExchange, EachPeerGetsItsOwnEvenIfAllNeedTheNextOne) {
  std::array<Rank, 3> ranks{Rank(0), Rank(1), Rank(2)};
  for (auto& rank : ranks) {
    for (auto& peer : ranks) {
      if (&peer == &rank) continue;
      rank.share_with(peer);
      rank.greet(peer);
    }
  }
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    auto& next = ranks[(i + 1) % ranks.size()];
    EXPECT_EQ(ranks[i].owner_of_memory_from(next, later()), next.rank);
  }
}

TEST(IpcExchange, AWaitEndsInTimeAndNamesThePeer) {
  Rank first(1), second(2);
  auto const expect_named = [](auto const& wait) {
    try {
      static_cast<void>(wait());
      FAIL() << "something came";
    } catch (SystemError const& error) {
      EXPECT_NE(std::string(error.what()).find("rank 2"), std::string::npos) << error.what();
    }
  };
  expect_named([&] { return first.ipc_exchange.await_hello(kSet, 2, soon(), never_give_up); });
  second.greet(first);
  expect_named([&] { return first.owner_of_memory_from(second, soon()); });
  auto const fail = [] { throw std::runtime_error("the group has failed"); };
  EXPECT_THROW(static_cast<void>(first.ipc_exchange.await_hello(kSet + 1, 2, later(), fail)), std::runtime_error);
}

constexpr int kManySets = 600;  ///< More than any queue of datagrams holds by default.

/// Sends the descriptors of so many sets that the receiver's mailbox is full.
void fill_mailbox(Rank& receiver, Rank& sender) {
  for (int set = 0; set < kManySets; ++set) {
    sender.ipc_exchange.send_descriptors(set, receiver.rank, {sender.file.get(), sender.file.get()});
    sender.ipc_exchange.on_oob(receiver.rank, receiver.ipc_exchange.greeting(sender.rank, {.set = set}));
  }
}

TEST(IpcExchange, AFullMailboxGetsWhatItLacksLater) {
  Rank receiver(0), sender(1);
  fill_mailbox(receiver, sender);
  for (int set = kManySets - 1; set >= 0; --set) {
    auto const send_again = [&] { sender.ipc_exchange.send_again(); };
    EXPECT_TRUE(receiver.ipc_exchange.await_descriptors(set, 1, later(), send_again)[0].valid()) << set;
  }
}

TEST(IpcExchange, ItWaitsUntilAFullMailboxHasRoom) {
  Rank receiver(0), sender(1);
  fill_mailbox(receiver, sender);
  EXPECT_NO_THROW(sender.ipc_exchange.await_room(0, later(), never_give_up));
  EXPECT_THROW(sender.ipc_exchange.await_room(kManySets - 1, soon(), never_give_up), SystemError);
  auto const take_some = [&, set = 0]() mutable {
    EXPECT_TRUE(receiver.ipc_exchange.await_descriptors(set++, 1, later(), never_give_up)[0].valid());
  };
  sender.ipc_exchange.await_room(kManySets - 1, later(), take_some);
}

TEST(IpcExchange, ANewHelloGetsEverythingAgain) {
  Rank first(1), second(2);
  first.share_with(second);
  second.greet(first);
  first.greet(second);
  EXPECT_EQ(second.owner_of_memory_from(first, later()), 1);
  Rank again(2);  // Replaces the second rank, which failed to make its resources.
  first.greet(again);
  again.greet(first);
  EXPECT_EQ(again.owner_of_memory_from(first, later()), 1);
}

TEST(IpcExchange, APeerThatHasGoneIsNoError) {
  Rank first(1);
  {
    Rank second(2);
    second.greet(first);
  }
  EXPECT_NO_THROW(first.ipc_exchange.send_descriptors(kSet, 2, {first.file.get(), first.file.get()}));
}

TEST(IpcExchange, AGreetingOfAnotherLengthIsRefused) {
  IpcExchange ipc_exchange;
  EXPECT_THROW(ipc_exchange.on_oob(1, "good day"), UsageError);
}

}  // namespace
}  // namespace headway::comm::peer_copy
