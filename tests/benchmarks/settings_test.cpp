// SPDX-License-Identifier: Apache-2.0

// Command-line options of the benchmarks: lists, choices, and errors that name the option and what it takes. A rank
// comes from the options before the environment, so that a launcher's variables can be overruled.

#include "settings.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace headway::benchmarks {
namespace {

Settings parse(std::vector<char const*> const& arguments) { return parse_settings(arguments); }

std::string error_of(std::vector<char const*> const& arguments) {
  try {
    parse(arguments);
  } catch (SettingsError const& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Settings, TakeListsAndChoices) {
  auto const settings = parse({"--sizes", "1,8,4096", "--split", "zipf", "--mode", "lag_cost", "--lags", "0,3"});
  EXPECT_EQ(settings.sizes, (std::vector<std::size_t>{1, 8, 4096}));
  EXPECT_EQ(settings.split, Split::kZipf);
  EXPECT_EQ(settings.mode, Mode::kLagCost);
  EXPECT_EQ(settings.lags, (std::vector<int>{0, 3}));
}

TEST(Settings, NameWhatIsWrong) {
  EXPECT_EQ(error_of({"--sise", "1"}), "unknown option --sise (see --help)");
  EXPECT_EQ(error_of({"--lag"}), "--lag needs a value");
  EXPECT_EQ(error_of({"--lag", "-1"}), "--lag -1: a number from 0 to 64 expected");
  EXPECT_EQ(error_of({"--split", "odd"}), "--split odd: one of even, incast, zipf expected");
  EXPECT_EQ(error_of({"--sizes", "8,x"}), "--sizes x: a number from 0 to 68719476736 expected");
}

TEST(RankIdentity, ComesFromTheOptionsBeforeTheEnvironment) {
  ::setenv("OMPI_COMM_WORLD_RANK", "3", 1);
  ::setenv("OMPI_COMM_WORLD_SIZE", "5", 1);
  auto const launched = find_rank_identity(parse({}));
  auto const told = find_rank_identity(parse({"--rank", "1", "--ranks", "2"}));
  ::unsetenv("OMPI_COMM_WORLD_RANK");
  ::unsetenv("OMPI_COMM_WORLD_SIZE");
  ASSERT_TRUE(launched && told);
  EXPECT_EQ(launched->rank, 3);
  EXPECT_EQ(launched->ranks, 5);
  EXPECT_EQ(told->rank, 1);
  EXPECT_EQ(told->ranks, 2);
}

TEST(RankIdentity, RefusesARankBeyondTheLast) {
  EXPECT_THROW((void)find_rank_identity(parse({"--rank", "2", "--ranks", "2"})), SettingsError);
}

}  // namespace
}  // namespace headway::benchmarks
