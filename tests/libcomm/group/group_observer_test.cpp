// SPDX-License-Identifier: Apache-2.0
#include "observe/group_observer.hpp"

#include "headway/comm/group.hpp"
#include "observe/flight_recorder.hpp"
#include "ranks_as_threads.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace headway::comm {
namespace {

/// Observers: operations that belong to a group but do not use its endpoint, such as those of a device group. They hear
/// its out-of-band (OOB) messages and failures.
class GroupObserverTest : public GroupTest {
 protected:
  /// Records OOB messages. All calls hold the group's lock, which health() takes as well.
  class Listener final : public GroupObserver {
   public:
    explicit Listener(Group& group) : group_(group) { group.admin().attach(*this); }
    ~Listener() override { group_.admin().detach(*this); }

    bool is_late(Clock::time_point /*now*/) override { return false; }
    bool needs(int /*peer*/) override { return false; }
    std::string describe_missing() override { return ""; }
    /// Adds the record of an operation on CUDA device 3. Operations on host memory have device -1.
    void append_flights(FlightClock::Reading const& clock, std::vector<FlightRecord>& records) override {
      records.push_back(make_flight_record({.verb = "send", .seq = 7, .peer = 1, .device = 3},
                                           {.input_bytes = 8, .started = FlightClock::ticks()}, FlightState::kPosted,
                                           clock));
    }
    void on_oob(int peer, std::string_view text) override {
      if (text == "nonsense") throw std::runtime_error("rank " + std::to_string(peer) + " talks nonsense");
      said.emplace_back(peer, text);
      num_heard = said.size();
    }
    void group_failed(Status const& /*failure*/) noexcept override {}

    /// Waits until `count` OOB messages were heard, or the group has failed.
    void await(std::size_t count) {
      Deadline const deadline = Clock::now() + std::chrono::seconds(20);
      while (num_heard < count && group_.monitor().health().ok() && Clock::now() < deadline) std::this_thread::yield();
    }

    std::vector<std::pair<int, std::string>> said;
    std::atomic<std::size_t> num_heard = 0;

   private:
    Group& group_;
  };
};

TEST_P(GroupObserverTest, HearsAllInOrderAlsoWhatWasSaidBeforeItWasThere) {
  std::barrier all(2);
  run_ranks(2, options(), [&](Group& group) {
    std::string const long_text(4000, 'x');
    if (group.rank() == 0) {
      group.admin().send_oob(1, "first");
      group.admin().send_oob(1, std::string("\x01\0\x02", 3));
      static_cast<void>(group.wait(*group.barrier()));
      all.arrive_and_wait();
      group.admin().send_oob(1, long_text);
    } else {
      static_cast<void>(group.wait(*group.barrier()));
      EXPECT_TRUE(group.monitor().health().ok());
      Listener listener(group);
      all.arrive_and_wait();
      listener.await(3);
      std::vector<std::pair<int, std::string>> const expected{
          {0, "first"}, {0, std::string("\x01\0\x02", 3)}, {0, long_text}};
      EXPECT_EQ(listener.said, expected);
    }
    all.arrive_and_wait();
  });
}

TEST_P(GroupObserverTest, TheGroupFailsWithWhatItsObserverThrows) {
  std::barrier all(2);
  run_ranks(2, options(), [&](Group& group) {
    if (group.rank() == 0) {
      group.admin().send_oob(1, "nonsense");
    } else {
      Listener listener(group);
      listener.await(1);
      EXPECT_EQ(group.monitor().health().code(), StatusCode::kAborted);
      EXPECT_EQ(group.monitor().health().message(), "rank 0 talks nonsense");
    }
    all.arrive_and_wait();
  });
}

TEST_P(GroupObserverTest, ItsOperationsAreAmongTheFlightRecords) {
  run_ranks(2, options(), [&](Group& group) {
    static_cast<void>(group.wait(*group.barrier()));
    Listener const listener(group);
    auto const records = group.monitor().flight_records();
    ASSERT_EQ(records.size(), 2U);
    EXPECT_STREQ(records[0].verb, "barrier");
    EXPECT_EQ(records[0].device, -1);
    EXPECT_EQ(records[1].device, 3);
    EXPECT_EQ(records[1].seq, 7U);
    static_cast<void>(group.wait(*group.barrier()));
  });
}

TEST_P(GroupObserverTest, ItsOperationsAreAmongTheRecordsOfAFailure) {
  std::barrier all(2);
  run_ranks(2, options(), [&](Group& group) {
    Listener const listener(group);
    std::vector<FlightRecord> at_failure;
    group.admin().on_failure(
        [&](Status const& /*failure*/, std::vector<FlightRecord> const& records) { at_failure = records; });
    all.arrive_and_wait();  // No rank may fail before both have an observer.
    group.admin().abort("enough");
    EXPECT_TRUE(std::ranges::any_of(at_failure, [](auto const& record) { return record.device == 3; }));
  });
}

HEADWAY_TEST_GROUPS(GroupObserverTest);

}  // namespace
}  // namespace headway::comm
