// SPDX-License-Identifier: Apache-2.0

// Survivors: how the ranks that are left after a failure agree on who they are, without sockets.
//
// Each rank sends a claim: the members that it knows to be left, its progress, and its attempt. Progress is the number
// of completed operations: all-to-alls by channel, and other collectives. They have agreed when the claims of all
// members name the same members and attempt. If connecting the new group fails, they agree again for the next attempt.
// During an attempt they exchange named values, such as addresses.

#include "group/survivors.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <random>
#include <string>
#include <vector>

namespace headway::comm {
namespace {

using Ranks = std::vector<int>;

/// Ranks that exchange OOB messages. A seed draws the order of delivery, which keeps the order of each pair. A rank may
/// die at any time.
class Crowd {
 public:
  Crowd(int size, std::uint64_t seed) : random_(seed), size_(size), is_alive_(index(size), true) {
    for (int rank = 0; rank < size; ++rank) ranks_.emplace_back(rank, size);
    queues_.resize(index(size * size));
  }

  Survivors& operator[](int rank) { return ranks_[index(rank)]; }
  [[nodiscard]] bool is_alive(int rank) const { return is_alive_[index(rank)]; }
  std::uint64_t draw(std::uint64_t bound) { return random_() % bound; }

  void begin(int rank, Progress own = {.all_to_alls = {0}}) { ranks_[index(rank)].begin(std::move(own), {}); }
  /// Kills a rank. Its earlier OOB messages are still delivered, and then its loss.
  void kill(int rank) {
    is_alive_[index(rank)] = false;
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != rank) queue_of(rank, peer).emplace_back();
    }
  }
  /// Delivers one message. @returns false if there is none.
  bool step() {
    say_news();
    std::vector<int> busy;
    for (int i = 0; i < size_ * size_; ++i) {
      if (!queues_[index(i)].empty() && is_alive(i % size_)) busy.push_back(i);
    }
    if (busy.empty()) return false;
    int const chosen = busy[draw(busy.size())];
    auto& queue = queues_[index(chosen)];
    std::string const text = std::move(queue.front());
    queue.pop_front();
    Survivors& to = ranks_[index(chosen % size_)];
    text.empty() ? to.lost(chosen / size_, "it died") : to.on_oob(chosen / size_, text);
    return true;
  }

 private:
  static std::size_t index(int i) { return static_cast<std::size_t>(i); }
  std::deque<std::string>& queue_of(int from, int to) { return queues_[index(from * size_ + to)]; }
  /// Queues the news of each living rank (its claim, if that changed) to all others.
  void say_news() {
    for (int rank = 0; rank < size_; ++rank) {
      auto const news = is_alive(rank) ? ranks_[index(rank)].take_news() : std::nullopt;
      for (int peer = 0; news && peer < size_; ++peer) {
        if (peer != rank) queue_of(rank, peer).push_back(*news);
      }
    }
  }

  std::mt19937_64 random_;
  int size_;
  std::vector<bool> is_alive_;
  std::vector<Survivors> ranks_;
  std::vector<std::deque<std::string>> queues_;  ///< (size * size) OOB messages in flight; "": a loss.
};

TEST(SurvivorsTest, AllThatAreLeftAgreeWhoeverDiesWhenever) {
  constexpr int kSize = 6;
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    Crowd crowd(kSize, seed);
    int num_to_die = static_cast<int>(crowd.draw(kSize));
    Ranks to_begin{0, 1, 2, 3, 4, 5};
    for (bool moves = true; moves || !to_begin.empty();) {
      if (!to_begin.empty() && (crowd.draw(4) == 0 || !moves)) {
        std::swap(to_begin[crowd.draw(to_begin.size())], to_begin.back());
        if (crowd.is_alive(to_begin.back())) crowd.begin(to_begin.back(), {.all_to_alls = {crowd.draw(10)}});
        to_begin.pop_back();
      }
      int const victim = static_cast<int>(crowd.draw(kSize));
      if (num_to_die > 0 && crowd.draw(5) == 0 && crowd.is_alive(victim)) {
        crowd.kill(victim);
        --num_to_die;
      }
      moves = crowd.step();
    }
    Ranks alive;
    for (int rank = 0; rank < kSize; ++rank) {
      if (crowd.is_alive(rank)) alive.push_back(rank);
    }
    for (int const rank : alive) {
      ASSERT_TRUE(crowd[rank].has_agreed())
          << "seed " << seed << " rank " << rank << ", awaits " << crowd[rank].who_is_awaited();
      ASSERT_EQ(crowd[rank].members(), alive) << "seed " << seed << " rank " << rank;
      ASSERT_EQ(crowd[rank].common_progress().all_to_alls, crowd[alive.front()].common_progress().all_to_alls);
      ASSERT_FALSE(crowd[rank].excluded_by());
    }
  }
}

TEST(SurvivorsTest, ProgressIsWhatAllMembersHave) {
  Crowd crowd(3, 1);
  crowd.begin(0, {.all_to_alls = {7, 3}, .collectives = 5});
  crowd.begin(1, {.all_to_alls = {6, 4}, .collectives = std::uint64_t{1} << 40});
  crowd.begin(2, {.all_to_alls = {0, 0}, .collectives = 0});
  crowd.kill(2);
  while (crowd.step()) continue;
  for (int const rank : {0, 1}) {
    auto const common = crowd[rank].common_progress();
    EXPECT_EQ(common.all_to_alls, (std::vector<std::uint64_t>{6, 3}));
    EXPECT_EQ(common.collectives, 5U);
  }
}

TEST(SurvivorsTest, ASilentRankIsLeftOutAndLearnsIt) {
  Crowd crowd(3, 1);
  crowd.begin(0);
  crowd.begin(2);
  while (crowd.step()) continue;
  EXPECT_FALSE(crowd[0].has_agreed());
  EXPECT_EQ(crowd[0].who_is_awaited(), "rank 1");
  crowd[0].exclude_silent();
  while (crowd.step()) continue;
  EXPECT_TRUE(crowd[0].has_agreed());
  EXPECT_TRUE(crowd[2].has_agreed()) << "though its own time is not up";
  EXPECT_EQ(crowd[2].members(), (Ranks{0, 2}));
  crowd.begin(1);
  EXPECT_TRUE(crowd[1].excluded_by());
}

TEST(SurvivorsTest, AnAttemptThatFailsForOneIsOverForAll) {
  Crowd crowd(3, 1);
  for (int const rank : {0, 1, 2}) crowd.begin(rank);
  while (crowd.step()) continue;
  crowd[1].give_up(0);
  EXPECT_FALSE(crowd[1].has_agreed());
  while (crowd.step()) continue;
  for (int const rank : {0, 1, 2}) {
    EXPECT_TRUE(crowd[rank].has_agreed());
    EXPECT_EQ(crowd[rank].attempt(), 1U);
    crowd[rank].give_up(0);
    EXPECT_TRUE(crowd[rank].has_agreed()) << "attempt 0 was over already";
  }
}

TEST(SurvivorsTest, WhoeverIsDoneMayCloseItsConnections) {
  Crowd crowd(2, 1);
  for (int const rank : {0, 1}) crowd.begin(rank);
  while (crowd.step()) continue;
  crowd[0].on_oob(1, crowd[1].done_oob());
  crowd[0].lost(1, "it closed the connection");
  EXPECT_TRUE(crowd[0].is_anyone_done());
  EXPECT_TRUE(crowd[0].has_agreed());
  EXPECT_EQ(crowd[0].members(), (Ranks{0, 1}));
}

TEST(SurvivorsTest, ValuesBelongToOneAttempt) {
  Survivors sender(0, 2), receiver(1, 2);
  receiver.on_oob(0, sender.value_oob(3, "rank_address/0", "there"));
  EXPECT_EQ(receiver.value(3, "rank_address/0"), "there");
  EXPECT_EQ(sender.value(3, "rank_address/0"), "there");
  EXPECT_EQ(receiver.value(4, "rank_address/0"), std::nullopt);
}

TEST(SurvivorsTest, OobMessagesThatAreCutOrMadeUpChangeNothing) {
  Survivors sender(0, 40), receiver(1, 40);
  sender.begin({.all_to_alls = {1, 2, 3}, .collectives = 4}, std::array{5});  // Claims 39 members: all but rank 5.
  std::string const claim = sender.claim_oob();
  for (std::size_t length = 0; length < claim.size(); ++length) receiver.on_oob(0, claim.substr(0, length));
  receiver.on_oob(0, claim + "x");
  for (char const kind : {'\x03', '\x04', '\x05'}) {  // First byte of a claim, a value and a "done".
    std::mt19937_64 random(1);
    for (int i = 0; i < 1000; ++i) {
      std::string text(1, kind);
      for (std::uint64_t left = random() % 40; left > 0; --left) text += static_cast<char>(random());
      receiver.on_oob(0, text);
    }
  }
  EXPECT_EQ(receiver.members().size(), 40U);
  receiver.on_oob(0, claim);
  EXPECT_EQ(receiver.members().size(), 39U);
}

}  // namespace
}  // namespace headway::comm
