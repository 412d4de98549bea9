// SPDX-License-Identifier: Apache-2.0

// How often the progress thread steps a work (a group), by what the work needs: nothing, a step at each event on its
// file descriptors, or a poll every few milliseconds.

#include "channel/progress_thread.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace headway::comm {
namespace {

using std::chrono::milliseconds;

/// A work without file descriptors, so without events, that counts its steps.
class CountingWork final : public BackgroundWork {
 public:
  explicit CountingWork(BackgroundNeed need) : need_(need) {}
  [[nodiscard]] BackgroundNeed background_need() const override { return need_; }
  void background_step() noexcept override { ++num_steps; }
  [[nodiscard]] bool wants_regular_steps() const override { return false; }
  [[nodiscard]] int control_fd() const override { return -1; }
  [[nodiscard]] int activity_fd() const override { return -1; }

  std::atomic<int> num_steps = 0;

 private:
  BackgroundNeed need_;
};

/// Steps of a work with this need within half a second.
int num_steps_with(BackgroundNeed need) {
  ProgressThread thread;
  CountingWork work(need);
  thread.attach(work);
  thread.notify(milliseconds(0));
  std::this_thread::sleep_for(milliseconds(500));
  thread.detach(work);
  return work.num_steps;
}

TEST(ProgressThread, LooksAtWorkThatNoEventAnnouncesAlsoWhileItWaitsForEvents) {
  int const with_events = num_steps_with(BackgroundNeed::kEvents);
  EXPECT_LT(with_events, 30) << "each 50 ms, or each 25 if sleeps end early";
  // Each 2 ms. A busy host may let the thread run less often.
  EXPECT_GT(num_steps_with(BackgroundNeed::kPolls), 40);
  EXPECT_GT(num_steps_with(BackgroundNeed::kEventsAndPolls), 40) << "an overdue RTS would be revoked late";
}

TEST(ProgressThread, LeavesWorkAloneThatNeedsNothing) { EXPECT_LT(num_steps_with(BackgroundNeed::kNone), 3); }

}  // namespace
}  // namespace headway::comm
