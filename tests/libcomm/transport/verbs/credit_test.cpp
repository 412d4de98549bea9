// SPDX-License-Identifier: Apache-2.0

// Credits of the RDMA transport: three senders share the receive queue of rank 0. A sender's credits are the receives
// of that queue that it may use before the receiver returns some.
//
// If a sender exceeded its share, the queue would run dry and the device would count a "receiver not ready" event.
// Most devices hide that by a retransmission, so the test reads the device's counter instead of waiting for an error.

#include "transport/verbs/limits.hpp"
#include "verbs_transport.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

namespace headway::comm {
namespace {

constexpr int kRanks = 4;  ///< Rank 0 receives; the others send.

/// Counts tags by source, and detects missing and repeated tags.
class CountingSink final : public ArrivalSink {
 public:
  void arrived(int source, Tag tag) override {
    auto& count = counts_[static_cast<std::size_t>(source)];
    EXPECT_EQ(tag.operation, static_cast<std::uint16_t>(count)) << "of rank " << source;
    ++count;
  }
  void on_oob(int peer, std::string_view text) override {
    ADD_FAILURE() << "OOB message of rank " << peer << ": " << text;
  }
  void lost(int peer, std::string_view reason) override { ADD_FAILURE() << "rank " << peer << " lost: " << reason; }

  [[nodiscard]] std::uint64_t of(int source) const { return counts_[static_cast<std::size_t>(source)]; }

 private:
  std::vector<std::uint64_t> counts_ = std::vector<std::uint64_t>(kRanks);
};

/// Number of receiver-not-ready events of this host's devices. A receive queue that ran dry shows there.
std::uint64_t receivers_not_ready() {
  std::uint64_t total = 0;
  for (auto const& address : verbs::find_addresses()) {
    auto const folder = "/sys/class/infiniband/" + address.device + "/ports/" + std::to_string(address.port);
    std::error_code missing;
    for (auto const& file : std::filesystem::directory_iterator(folder + "/hw_counters", missing)) {
      std::uint64_t count = 0;
      if (file.path().filename().string().find("rnr") == std::string::npos) continue;
      if (std::ifstream(file.path()) >> count) total += count;
    }
  }
  return total;
}

/// Three senders and one receiver that share a receive queue.
class CreditTest : public testing::Test {
 protected:
  /// Puts tags from `rank` to rank 0 until there is no credit or `limit` tags are sent in total.
  void put_while_accepted(int rank, std::uint64_t limit) {
    auto& sender = *endpoints_[static_cast<std::size_t>(rank)];
    auto& sent = sent_[static_cast<std::size_t>(rank)];
    while (sent < limit && sender.put({.peer = 0}, {}, {}, Tag{.operation = static_cast<std::uint16_t>(sent)}).ok()) {
      ++sent;
    }
    sender.submit();
  }
  void poll(int rank) {
    auto& endpoint = *endpoints_[static_cast<std::size_t>(rank)];
    endpoint.poll(rank == 0 ? at_receiver_ : at_senders_);
    endpoint.submit();
  }
  [[nodiscard]] bool all_arrived(std::uint64_t count) const {
    for (int rank = 1; rank < kRanks; ++rank) {
      if (at_receiver_.of(rank) != count) return false;
    }
    return true;
  }

  std::vector<std::unique_ptr<Endpoint>> endpoints_ = connect_in_threads<Verbs>(kRanks, 4096);
  std::vector<std::uint64_t> sent_ = std::vector<std::uint64_t>(kRanks);
  CountingSink at_receiver_, at_senders_;
};

TEST_F(CreditTest, ASenderStopsWhereItsShareOfTheReceiveQueueEnds) {
  std::uint64_t const share = static_cast<VerbsEndpoint&>(*endpoints_[0]).credits();
  auto const all_sent = [&] { return sent_[1] >= share && sent_[2] >= share && sent_[3] >= share; };
  auto const put_and_poll = [&] {
    for (int rank = 1; rank < kRanks; ++rank) put_while_accepted(rank, 1'000'000);
    for (int rank = 1; rank < kRanks; ++rank) poll(rank);
  };
  for (Deadline const end = Clock::now() + std::chrono::seconds(20); !all_sent() && Clock::now() < end;) put_and_poll();
  for (int round = 0; round < 100; ++round) put_and_poll();
  for (int rank = 1; rank < kRanks; ++rank) EXPECT_EQ(sent_[static_cast<std::size_t>(rank)], share);
}

TEST_F(CreditTest, TheReceiveQueueNeverRunsDryWhoeverSendsHowMuch) {
  std::uint64_t const before = receivers_not_ready();
  constexpr std::uint64_t kEach = 4000;
  std::mt19937 random(17);
  Deadline const deadline = Clock::now() + std::chrono::seconds(100);
  while (!all_arrived(kEach) && Clock::now() < deadline) {
    // Mostly one sender alone, so that it uses all its credit. The receiver is slow and sees many tags at a time.
    int const rank = 1 + static_cast<int>(random() % (kRanks - 1));
    put_while_accepted(rank, kEach);
    poll(rank);
    if (random() % 8 == 0) poll(0);
  }
  EXPECT_TRUE(all_arrived(kEach));
  EXPECT_EQ(receivers_not_ready(), before) << "a message found no receive";
}

}  // namespace
}  // namespace headway::comm
