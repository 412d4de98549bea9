// SPDX-License-Identifier: Apache-2.0

// Conformance of transports between processes: what a SIGKILL at any time leaves to the others.
//
// The peer is a forked process that puts until it is killed. A sleeping rank must wake, a get() must fail instead of
// returning old bytes, and no file with a name may stay behind.

#include "process_conformance.hpp"

#include "child_process.hpp"
#include "headway/comm/endpoint.hpp"
#include "headway/comm/store.hpp"
#include "host_traces.hpp"
#include "temporary_directory.hpp"
#include "test_bytes.hpp"

#include <gtest/gtest.h>

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace headway::comm {

void ProcessConformance::SetUp() {
  child_ = ::fork();
  ASSERT_GE(child_, 0);
  if (child_ == 0) stream_until_killed();
  std::array<std::string, 2> errors;
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank, index = static_cast<std::size_t>(rank)] {
        try {
          FileStore store(directory_.path() / "store");
          endpoints_[index] = GetParam().connect_rank(rank, 3, kReceiveBufferBytes, store);
        } catch (std::exception const& error) {
          errors[index] = error.what();
        }
      });
    }
  }
  ASSERT_EQ(errors[0] + errors[1], "");
}

void ProcessConformance::TearDown() {
  if (child_ > 0) kill_child();
}

void ProcessConformance::kill_child() {
  ::kill(child_, SIGKILL);
  wait_for_exit(child_);
  child_ = -1;
}

void ProcessConformance::stream_until_killed() {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::alarm(120);
  try {
    FileStore store(directory_.path() / "store");
    auto const endpoint = GetParam().connect_rank(kVictim, 3, kReceiveBufferBytes, store);
    auto const payload = test_bytes(100000, 1);
    RecordingSink sink;
    for (std::uint16_t operation = 0;; ++operation) {
      for (int const peer : {0, 1}) {
        while (!endpoint->put({.peer = peer}, {}, payload, Tag{.operation = operation}).ok()) endpoint->poll(sink);
      }
      endpoint->submit();
      endpoint->poll(sink);
    }
  } catch (...) {
    ::_exit(3);
  }
}

TEST_P(ProcessConformance, AKilledProcessIsReportedOnceAndTheOthersGoOn) {
  ASSERT_TRUE(poll_until([&] { return sinks_[0].tags_from(2) > 50 && sinks_[1].tags_from(2) > 50; }));
  kill_child();
  ASSERT_TRUE(poll_until([&] { return sinks_[0].losses_of(2) == 1 && sinks_[1].losses_of(2) == 1; }, kMaxTimeToLoss));

  auto const payload = test_bytes(50000, 2);
  ASSERT_TRUE(endpoints_[0]->put({.peer = 1}, {}, payload, Tag{.channel = 9}).ok());
  endpoints_[0]->submit();
  ASSERT_TRUE(poll_until([&] { return sinks_[1].has(0, Tag{.channel = 9}); }));
  EXPECT_TRUE(same_bytes(endpoints_[1]->receive_buffer().subspan(kHeaderBytes, payload.size()), payload));
  EXPECT_EQ(sinks_[0].losses().size(), 1u);
  EXPECT_EQ(sinks_[1].losses().size(), 1u);
}

TEST_P(ProcessConformance, TheLossOfAProcessEndsASleepAndMakesTheControlFdReadable) {
  int const fd = endpoints_[0]->control_fd();
  ASSERT_TRUE(poll_until([&] { return sinks_[0].tags_from(2) > 0; }));
  kill_child();
  Deadline const deadline = Clock::now() + std::chrono::seconds(10);
  while (sinks_[0].losses_of(2) == 0 && Clock::now() < deadline) {
    endpoints_[0]->arm();
    if (!endpoints_[0]->poll(sinks_[0])) endpoints_[0]->sleep(deadline);
    endpoints_[0]->disarm();
  }
  EXPECT_LT(Clock::now(), deadline - std::chrono::seconds(8)) << "the loss took more than 2 s to show";
  EXPECT_EQ(sinks_[0].losses_of(2), 1u);
  EXPECT_GE(fd, 0) << "a transport between processes has a control descriptor";
}

TEST_P(ProcessConformance, TheMemoryOfAKilledProcessCannotBeRead) {
  if (!endpoints_[0]->traits(2).can_get) GTEST_SKIP() << "this transport or host does not read a peer's memory";
  kill_child();
  std::byte local[16];
  static std::byte const somewhere[16] = {};
  Status const status = endpoints_[0]->get(2, reinterpret_cast<std::uint64_t>(somewhere), local);
  EXPECT_EQ(status.code(), StatusCode::kPeerLost);
  EXPECT_FALSE(status.message().empty());
}

TEST_P(ProcessConformance, AKilledProcessLeavesNoNamedFile) {
  ASSERT_TRUE(poll_until([&] { return sinks_[0].tags_from(2) > 0; }));
  kill_child();
  EXPECT_EQ(named_temporary_files_of(), std::vector<std::string>());
}

}  // namespace headway::comm
