#include "meeting.hpp"

#include <gtest/gtest.h>

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace headway::benchmarks {
namespace {

/// Ranks are threads that meet in a file of this process.
class MeetingTest : public testing::Test {
 protected:
  ~MeetingTest() override { std::filesystem::remove(file_); }
  std::filesystem::path const file_ =
      std::filesystem::temp_directory_path() / ("headway-meeting-test-" + std::to_string(::getpid()));
};

TEST_F(MeetingTest, LetsNobodyLeaveBeforeAllHaveCome) {
  constexpr int kRanks = 4;
  constexpr int kRounds = 200;
  std::atomic<int> arrivals = 0;
  std::atomic<bool> early = false;
  {
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < kRanks; ++rank) {
      ranks.emplace_back([&, rank] {
        Meeting meeting(file_, rank, kRanks, std::chrono::seconds(30));
        for (int round = 1; round <= kRounds; ++round) {
          ++arrivals;
          meeting.meet();
          if (arrivals < round * kRanks) early = true;
          meeting.meet();
        }
      });
    }
  }
  EXPECT_FALSE(early);
  EXPECT_EQ(arrivals, kRanks * kRounds);
}

TEST_F(MeetingTest, GathersTheValuesOfAllRanksInTheirOrder) {
  std::vector<std::vector<double>> seen_by_1;
  std::jthread other([&] {
    Meeting meeting(file_, 1, 2, std::chrono::seconds(30));
    seen_by_1 = meeting.gather(std::vector{3.0, 4.0});
  });
  Meeting meeting(file_, 0, 2, std::chrono::seconds(30));
  auto const seen_by_0 = meeting.gather(std::vector{1.0, 2.0});
  other.join();
  std::vector<std::vector<double>> const expected{{1.0, 3.0}, {2.0, 4.0}};
  EXPECT_EQ(seen_by_0, expected);
  EXPECT_EQ(seen_by_1, expected);
}

TEST_F(MeetingTest, EndsWithAnErrorWhenAnotherRankFailed) {
  Meeting meeting(file_, 0, 2, std::chrono::seconds(30));
  Meeting(file_, 1, 2, std::chrono::seconds(30)).fail();
  EXPECT_THROW(meeting.meet(), std::runtime_error);
}

TEST_F(MeetingTest, EndsWithAnErrorWhenTheTimeIsOver) {
  Meeting meeting(file_, 0, 2, std::chrono::seconds(0));
  EXPECT_THROW(meeting.meet(), std::runtime_error);
}

}  // namespace
}  // namespace headway::benchmarks
