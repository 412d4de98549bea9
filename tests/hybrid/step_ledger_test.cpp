// SPDX-License-Identifier: Apache-2.0

// The staleness rule: which lookups may be answered, and which parts may be applied.

#include "headway/hybrid/step_ledger.hpp"

#include "headway/base/status.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>

namespace headway::hybrid {
namespace {

std::string error_of(std::function<void()> const& call) {
  try {
    call();
  } catch (base::UsageError const& error) {
    return error.what();
  }
  return "";
}

TEST(StepLedger, WithoutStalenessAStepWaitsForAllPartsOfTheOneBefore) {
  StepLedger ledger({.num_workers = 2});
  EXPECT_TRUE(ledger.may_answer(0, 0));
  EXPECT_FALSE(ledger.may_answer(1, 0));
  ledger.add_part(0, 1);
  EXPECT_FALSE(ledger.may_apply());
  EXPECT_EQ(ledger.missing_workers(), std::vector<std::uint32_t>{0});
  ledger.add_part(0, 0);
  ASSERT_TRUE(ledger.may_apply());
  EXPECT_FALSE(ledger.may_answer(1, 0)) << "not applied yet";
  ledger.finish_step();
  EXPECT_TRUE(ledger.may_answer(1, 0));
  EXPECT_FALSE(ledger.may_answer(2, 0));
}

TEST(StepLedger, AnAnswerLacksAtMostTheStepsOfTheStaleness) {
  for (std::uint32_t const staleness : {0, 1, 4, 16}) {
    StepLedger ledger({.num_workers = 1, .staleness = staleness, .first_step = 10});
    EXPECT_TRUE(ledger.may_answer(10 + staleness, 0));
    EXPECT_FALSE(ledger.may_answer(11 + staleness, 0));
    ledger.add_part(10, 0);
    ledger.finish_step();
    EXPECT_TRUE(ledger.may_answer(11 + staleness, 0));
    EXPECT_FALSE(ledger.may_answer(12 + staleness, 0));
  }
}

TEST(StepLedger, PartsOfLaterStepsWaitForTheirTurn) {
  StepLedger ledger({.num_workers = 2, .staleness = 1});
  ledger.add_part(1, 0);
  ledger.add_part(1, 1);
  EXPECT_FALSE(ledger.may_apply());
  ledger.add_part(0, 0);
  ledger.add_part(0, 1);
  for (std::uint64_t step = 0; step < 2; ++step) {
    ASSERT_TRUE(ledger.may_apply());
    ledger.finish_step();
  }
  EXPECT_EQ(ledger.num_applied(), 2U);
  EXPECT_FALSE(ledger.may_apply());
}

TEST(StepLedger, APartCountsOnce) {
  StepLedger ledger({.num_workers = 2});
  ledger.add_part(0, 0);
  EXPECT_NE(error_of([&] { ledger.add_part(0, 0); }).find("part of step 0, worker 0 has come before"),
            std::string::npos);
  ledger.add_part(0, 1);
  ledger.finish_step();
  EXPECT_NE(error_of([&] { ledger.add_part(0, 1); }).find("steps below 1 have been applied"), std::string::npos);
  EXPECT_NE(error_of([&] { ledger.add_part(1, 2); }).find("there are 2 dense workers"), std::string::npos);
  EXPECT_EQ(ledger.missing_workers().size(), 2U);
}

TEST(StepLedger, TheWindowIsTwoStepsAndTwiceTheStaleness) {
  StepLedger ledger({.num_workers = 1, .staleness = 3, .first_step = 5});
  ledger.add_lookup(5 + 2 * 3 + 1, 0);
  EXPECT_NE(error_of([&] { ledger.add_lookup(5 + 2 * 3 + 2, 0); }).find("only steps below 13 can have begun"),
            std::string::npos);
  EXPECT_FALSE(error_of([&] { ledger.add_part(~std::uint64_t{0}, 0); }).empty());
}

TEST(StepLedger, ALookupAfterItsPartIsAnError) {
  StepLedger ledger({.num_workers = 2, .staleness = 1});
  ledger.add_part(0, 0);
  EXPECT_NE(error_of([&] { ledger.add_lookup(0, 0); }).find("the part has come, or is void"), std::string::npos);
  ledger.add_lookup(0, 1);
  EXPECT_NE(error_of([&] { ledger.add_lookup(0, 1); }).find("has come before"), std::string::npos);
}

TEST(StepLedger, InExactOrderAStepWaitsForTheAnswersThatMustNotContainIt) {
  StepLedger ledger({.num_workers = 2, .staleness = 1, .is_exact = true});
  for (std::uint32_t const worker : {0, 1}) {
    ledger.add_lookup(0, worker);
    ledger.count_answer(0, worker);
    ledger.add_part(0, worker);
  }
  EXPECT_FALSE(ledger.may_apply()) << "lookups of step 1 have not been answered";
  ledger.add_lookup(1, 0);
  ledger.count_answer(1, 0);
  EXPECT_FALSE(ledger.may_apply());
  ledger.add_part(1, 1);  // Void: worker 1 looks nothing up in step 1.
  EXPECT_TRUE(ledger.may_apply());
  ledger.finish_step();
  ledger.add_part(1, 0);
  EXPECT_FALSE(ledger.may_apply());
  ledger.end_at(2);
  EXPECT_TRUE(ledger.may_apply());
  EXPECT_NE(error_of([&] { ledger.add_lookup(2, 0); }).find("the workers ended before step 2"), std::string::npos);
}

TEST(StepLedger, WithoutASharedClockAWorkerWaitsForItsOwnPartsAlone) {
  StepLedger ledger({.num_workers = 3, .staleness = 1, .first_step = 5, .sums_parts = false, .shares_clock = false});
  EXPECT_EQ(ledger.total_applied(), 15U);
  for (std::uint64_t step = 5; step < 9; ++step) {
    EXPECT_TRUE(ledger.may_answer(step + 1, 1));
    EXPECT_FALSE(ledger.may_answer(step + 2, 1)) << "its own part is missing";
    EXPECT_EQ(ledger.worker_to_apply(), std::nullopt);
    ledger.add_lookup(step, 1);
    ledger.add_part(step, 1);
    EXPECT_EQ(ledger.worker_to_apply(), 1U);
    ledger.finish_step(1);
  }
  EXPECT_EQ(ledger.num_applied(1), 9U);
  EXPECT_EQ(ledger.num_applied(0), 5U);
  EXPECT_EQ(ledger.num_applied(), 9U) << "the worker that has come furthest";
  EXPECT_EQ(ledger.total_applied(), 19U);
  EXPECT_FALSE(ledger.may_answer(7, 2));
  EXPECT_NE(error_of([&] { ledger.add_part(8, 1); }).find("part of step 8, worker 1: steps below 9 have been applied"),
            std::string::npos);
  EXPECT_NE(error_of([&] { ledger.add_lookup(9, 0); }).find("worker 0: only steps below 9 can have begun"),
            std::string::npos);
  EXPECT_NE(error_of([&] { ledger.add_lookup(5, 3); }).find("there are 3 dense workers"), std::string::npos);
  EXPECT_NE(error_of([&] { static_cast<void>(ledger.num_applied(3)); }).find("there are 3 dense workers"),
            std::string::npos);
}

TEST(StepLedger, WithoutASharedClockThereIsNoOrderSumOrCommonEnd) {
  EXPECT_THROW(StepLedger({.shares_clock = false}), base::UsageError);
  EXPECT_THROW(StepLedger({.is_exact = true, .sums_parts = false, .shares_clock = false}), base::UsageError);
  StepLedger ledger({.sums_parts = false, .shares_clock = false});
  EXPECT_NE(error_of([&] { ledger.end_at(3); }).find("no common end"), std::string::npos);
}

TEST(StepLedger, OptionsOutOfRangeAreErrors) {
  EXPECT_THROW(StepLedger({.num_workers = 0}), base::UsageError);
  EXPECT_THROW(StepLedger({.num_workers = StepLedger::kMostWorkers + 1}), base::UsageError);
  EXPECT_THROW(StepLedger({.staleness = StepLedger::kMostStaleness + 1}), base::UsageError);
}

}  // namespace
}  // namespace headway::hybrid
