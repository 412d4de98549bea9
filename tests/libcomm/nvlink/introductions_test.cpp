// Ranks exchange descriptors of their memory without taking turns. Needs no device.

#include "engines/nvlink/introductions.hpp"

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

namespace headway::comm::nvlink {
namespace {

constexpr auto kPatience = std::chrono::seconds(20);
constexpr int kSet = 3;

Deadline soon() { return Clock::now() + std::chrono::milliseconds(50); }
Deadline later() { return Clock::now() + kPatience; }
void never_give_up() {}

/// A rank with a memory file for each peer. The size of the file encodes its owner.
struct Rank {
  explicit Rank(int number) : rank(number), file(::memfd_create("headway-test", MFD_CLOEXEC)) {}

  void offer_to(Rank& peer) {
    EXPECT_EQ(::ftruncate(file.get(), rank * 10 + 1), 0);
    introductions.offer(kSet, peer.rank, {file.get(), file.get()});
  }
  void greet(Rank& peer) {
    peer.introductions.heard(rank, introductions.greeting(peer.rank, {.set = kSet, .slot_bytes = 77}));
  }
  [[nodiscard]] int owner_of_memory_from(Rank const& peer, Deadline deadline) {
    auto const descriptors = introductions.await_descriptors(kSet, peer.rank, deadline, never_give_up);
    struct stat status {};
    EXPECT_EQ(::fstat(descriptors[1].get(), &status), 0);
    return static_cast<int>(status.st_size / 10);
  }

  int rank;
  FileDescriptor file;
  Introductions introductions;
};

TEST(Introductions, MemoryComesWithoutACallOfItsOwner) {
  Rank first(1), second(2);
  first.offer_to(second);
  first.greet(second);  // After that, rank 1 makes no further call.
  second.greet(first);
  EXPECT_EQ(second.introductions.await_hello(kSet, 1, later(), never_give_up).slot_bytes, 77U);
  EXPECT_EQ(second.owner_of_memory_from(first, later()), 1);
}

TEST(Introductions, MemoryOfferedAfterAHelloComesAtOnce) {
  Rank first(1), second(2);
  second.greet(first);
  first.greet(second);
  first.offer_to(second);
  EXPECT_EQ(second.owner_of_memory_from(first, later()), 1);
}

TEST(Introductions, EachPeerGetsItsOwnEvenIfAllNeedTheNextOne) {
  std::array<Rank, 3> ranks{Rank(0), Rank(1), Rank(2)};
  for (auto& rank : ranks) {
    for (auto& peer : ranks) {
      if (&peer == &rank) continue;
      rank.offer_to(peer);
      rank.greet(peer);
    }
  }
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    auto& next = ranks[(i + 1) % ranks.size()];
    EXPECT_EQ(ranks[i].owner_of_memory_from(next, later()), next.rank);
  }
}

TEST(Introductions, AWaitEndsInTimeAndNamesThePeer) {
  Rank first(1), second(2);
  auto const expect_named = [](auto const& wait) {
    try {
      static_cast<void>(wait());
      FAIL() << "something came";
    } catch (SystemError const& error) {
      EXPECT_NE(std::string(error.what()).find("rank 2"), std::string::npos) << error.what();
    }
  };
  expect_named([&] { return first.introductions.await_hello(kSet, 2, soon(), never_give_up); });
  second.greet(first);
  expect_named([&] { return first.owner_of_memory_from(second, soon()); });
  auto const fail = [] { throw std::runtime_error("the group has failed"); };
  EXPECT_THROW(static_cast<void>(first.introductions.await_hello(kSet + 1, 2, later(), fail)), std::runtime_error);
}

constexpr int kManySets = 600;  ///< More than any queue of datagrams holds by default.

/// Offers so many sets that the receiver's mailbox is full.
void fill_mailbox(Rank& receiver, Rank& sender) {
  for (int set = 0; set < kManySets; ++set) {
    sender.introductions.offer(set, receiver.rank, {sender.file.get(), sender.file.get()});
    sender.introductions.heard(receiver.rank, receiver.introductions.greeting(sender.rank, {.set = set}));
  }
}

TEST(Introductions, AFullMailboxGetsWhatItLacksLater) {
  Rank receiver(0), sender(1);
  fill_mailbox(receiver, sender);
  for (int set = kManySets - 1; set >= 0; --set) {
    auto const send_again = [&] { sender.introductions.send_again(); };
    EXPECT_TRUE(receiver.introductions.await_descriptors(set, 1, later(), send_again)[0].valid()) << set;
  }
}

TEST(Introductions, ItWaitsUntilAFullMailboxHasRoom) {
  Rank receiver(0), sender(1);
  fill_mailbox(receiver, sender);
  EXPECT_NO_THROW(sender.introductions.await_room(0, later(), never_give_up));
  EXPECT_THROW(sender.introductions.await_room(kManySets - 1, soon(), never_give_up), SystemError);
  auto const take_some = [&, set = 0]() mutable {
    EXPECT_TRUE(receiver.introductions.await_descriptors(set++, 1, later(), never_give_up)[0].valid());
  };
  sender.introductions.await_room(kManySets - 1, later(), take_some);
}

TEST(Introductions, WhoIntroducesItselfAnewGetsEverythingAgain) {
  Rank first(1), second(2);
  first.offer_to(second);
  second.greet(first);
  first.greet(second);
  EXPECT_EQ(second.owner_of_memory_from(first, later()), 1);
  Rank again(2);  // Replaces the second rank, which failed to make its resources.
  first.greet(again);
  again.greet(first);
  EXPECT_EQ(again.owner_of_memory_from(first, later()), 1);
}

TEST(Introductions, APeerThatHasGoneIsNoError) {
  Rank first(1);
  {
    Rank second(2);
    second.greet(first);
  }
  EXPECT_NO_THROW(first.introductions.offer(kSet, 2, {first.file.get(), first.file.get()}));
}

TEST(Introductions, AGreetingOfAnotherLengthIsRefused) {
  Introductions introductions;
  EXPECT_THROW(introductions.heard(1, "good day"), UsageError);
}

}  // namespace
}  // namespace headway::comm::nvlink
