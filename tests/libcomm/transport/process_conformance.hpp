// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "endpoint_group.hpp"
#include "temporary_directory.hpp"
#include "tested_transport.hpp"

#include <gtest/gtest.h>

#include <sys/types.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <memory>

namespace headway::comm {

/// Ranks 0 and 1 in this process, and rank 2 in a child that puts to both until it is killed.
class ProcessConformance : public testing::TestWithParam<TestedTransport> {
 protected:
  static constexpr int kVictim = 2;
  static constexpr std::size_t kReceiveBufferBytes = std::size_t{1} << 20;
  static constexpr auto kMaxTimeToLoss = std::chrono::seconds(2);

  void SetUp() override;
  void TearDown() override;
  void kill_child();
  [[noreturn]] void stream_until_killed();

  template <typename Predicate>
  bool poll_until(Predicate done, Clock::duration patience = kTestPatience) {
    for (Deadline const deadline = Clock::now() + patience; !done();) {
      if (Clock::now() > deadline) return false;
      for (std::size_t rank = 0; rank < 2; ++rank) endpoints_[rank]->poll(sinks_[rank]);
    }
    return true;
  }

  TemporaryDirectory directory_;
  pid_t child_ = -1;
  std::array<std::unique_ptr<Endpoint>, 2> endpoints_;
  std::array<RecordingSink, 2> sinks_;
};

}  // namespace headway::comm
