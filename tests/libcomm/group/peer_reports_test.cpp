// SPDX-License-Identifier: Apache-2.0

// PeerReports: what a group has heard of its peers. A peer may leave (which is no failure), refuse further messages, be
// lost, or report a failure. A peer that left has gone once all that it put before has arrived.

#include "group/peer_reports.hpp"

#include <gtest/gtest.h>

#include <chrono>

namespace headway::comm {
namespace {

using std::chrono::milliseconds;

class PeerReportsTest : public testing::Test {
 protected:
  PeerReports reports_{3};
  Clock::time_point const now_ = Clock::now();
  /// Long enough after `now_` that all puts of a rank which left at `now_` have arrived.
  Clock::time_point const later_ = now_ + PeerReports::kLeaveTime;
};

TEST_F(PeerReportsTest, ALostPeerIsAFailureThatThisRankPassesOn) {
  reports_.lost(1, "its socket closed");
  EXPECT_EQ(reports_.failure().code(), StatusCode::kPeerLost);
  EXPECT_EQ(reports_.failure().message(), "rank 1 is lost (its socket closed)");
  EXPECT_TRUE(reports_.failure_is_ours());
}

TEST_F(PeerReportsTest, OnlyTheFirstFailureCounts) {
  reports_.failed_elsewhere({StatusCode::kAborted, "rank 2 aborted"});
  reports_.lost(1, "its socket closed");
  reports_.failed_elsewhere({StatusCode::kAborted, "rank 0 aborted"});
  EXPECT_EQ(reports_.failure().message(), "rank 2 aborted");
  EXPECT_FALSE(reports_.failure_is_ours());
}

TEST_F(PeerReportsTest, APeerThatLeftAndIsLostThenHasGoneWithoutAFailure) {
  reports_.left(1, now_);
  EXPECT_FALSE(reports_.has_gone(1)) << "some of its puts may still arrive";
  reports_.lost(1, "its socket closed");
  EXPECT_TRUE(reports_.has_gone(1));
  EXPECT_TRUE(reports_.has_any_gone());
  EXPECT_TRUE(reports_.failure().ok());
}

TEST_F(PeerReportsTest, APeerThatLeftLongAgoHasGoneAlsoIfItsSocketStaysOpen) {
  reports_.left(1, now_);
  reports_.expire(later_ - milliseconds(1));
  EXPECT_FALSE(reports_.has_any_gone());
  reports_.expire(later_);
  EXPECT_TRUE(reports_.has_gone(1));
  EXPECT_FALSE(reports_.has_gone(2));
}

TEST_F(PeerReportsTest, ARefusalCountsOnceWhatThePeerTookBeforeMustBeKnown) {
  EXPECT_FALSE(reports_.refuses(1, later_));
  reports_.refused(1, now_);
  EXPECT_FALSE(reports_.refuses(1, later_ - milliseconds(1)));
  EXPECT_TRUE(reports_.refuses(1, later_));
  EXPECT_FALSE(reports_.refuses(2, later_));
}

}  // namespace
}  // namespace headway::comm
