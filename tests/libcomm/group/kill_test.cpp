#include "failing_operation.hpp"
#include "headway/comm/group.hpp"
#include "host_traces.hpp"
#include "temporary_directory.hpp"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace headway::comm {
namespace {

std::vector<std::string> split(std::string const& text, char separator) {
  std::vector<std::string> words;
  std::istringstream stream(text);
  for (std::string word; std::getline(stream, word, separator);) words.push_back(word);
  return words;
}

/// A started rank_process and the lines that it prints.
class RankProcess {
 public:
  explicit RankProcess(std::vector<std::string> const& arguments) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe2 failed");
    output_ = ends[0];
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    auto words = split(HEADWAY_RANK_PROCESS, '|');
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    for (auto& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    int const error = ::posix_spawnp(&pid_, argv[0], &actions, nullptr, argv.data(), environ);
    ::posix_spawn_file_actions_destroy(&actions);
    ::close(ends[1]);
    if (error != 0) throw std::runtime_error("posix_spawn failed for " HEADWAY_RANK_PROCESS);
  }
  ~RankProcess() {
    kill();
    ::close(output_);
  }
  RankProcess(RankProcess const&) = delete;
  RankProcess& operator=(RankProcess const&) = delete;

  [[nodiscard]] std::string process() const { return std::to_string(pid_); }

  void kill() {
    if (pid_ > 0) ::kill(pid_, SIGKILL);
    collect();
  }

  /// Waits for its end. @returns the exit code; -1: it ended by a signal.
  int collect() {
    if (pid_ > 0) {
      ::waitpid(pid_, &wait_status_, 0);
      pid_ = -1;
    }
    return WIFEXITED(wait_status_) ? WEXITSTATUS(wait_status_) : -1;
  }

  /// The next line that it prints, or nothing when `patience` passes or it ends.
  std::optional<std::string> read_line(std::chrono::milliseconds patience) {
    auto const deadline = Clock::now() + patience;
    for (;;) {
      if (auto const end = unread_.find('\n'); end != std::string::npos) {
        std::string line = unread_.substr(0, end);
        unread_.erase(0, end + 1);
        return line;
      }
      auto const left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
      pollfd entry{.fd = output_, .events = POLLIN, .revents = 0};
      if (left <= 0 || ::poll(&entry, 1, static_cast<int>(left)) <= 0) return std::nullopt;
      char buffer[4096];
      ssize_t const count = ::read(output_, buffer, sizeof buffer);
      if (count <= 0) return std::nullopt;
      unread_.append(buffer, static_cast<std::size_t>(count));
    }
  }

 private:
  pid_t pid_ = -1;
  int wait_status_ = 0;
  int output_ = -1;
  std::string unread_;
};

/// kill -9 of a rank in a stream of exchanges: engine, bytes per block, bound.
class KillTest : public testing::TestWithParam<std::tuple<char const*, int, int>> {
 protected:
  static constexpr int kSize = 4;
  static constexpr int kVictim = 2;

  static void kill_one_of(std::vector<std::unique_ptr<RankProcess>>& ranks) {
    ranks[kVictim]->kill();
    auto const killed_at = Clock::now();
    for (int rank = 0; rank < kSize; ++rank) {
      if (rank == kVictim) continue;
      auto& process = *ranks[static_cast<std::size_t>(rank)];
      auto const line = process.read_line(std::chrono::seconds(10));
      ASSERT_TRUE(line.has_value()) << "rank " << rank << " hangs or ended without a word";
      EXPECT_LT(Clock::now() - killed_at, std::chrono::seconds(2)) << "rank " << rank;
      EXPECT_TRUE(line->starts_with("failed: ") && names(*line, "rank 2")) << "rank " << rank << ": " << *line;
      EXPECT_EQ(process.collect(), 0) << "rank " << rank;
    }
  }
};

TEST_P(KillTest, EverySurvivorOfAKillNamesTheVictimWithinTwoSeconds) {
  auto const [engine, bytes, lag] = GetParam();
  for (int round = 0; round < 5; ++round) {
    TemporaryDirectory const directory;
    std::vector<std::unique_ptr<RankProcess>> ranks;
    for (int rank = 0; rank < kSize; ++rank) {
      ranks.push_back(std::make_unique<RankProcess>(
          std::vector<std::string>{std::to_string(rank), std::to_string(kSize), (directory.path() / "store").string(),
                                   engine, std::to_string(bytes), std::to_string(lag)}));
    }
    for (int rank = 0; rank < kSize; ++rank) {
      ASSERT_EQ(ranks[static_cast<std::size_t>(rank)]->read_line(std::chrono::seconds(30)), "ready") << "rank " << rank;
    }
    // What has no name cannot be left behind, however a process ends.
    EXPECT_EQ(named_temporary_files_of(ranks[kVictim]->process()), std::vector<std::string>());
    kill_one_of(ranks);
  }
}

std::vector<char const*> engines() {
  if (std::getenv("HEADWAY_TEST_RDMA") != nullptr) return {"verbs"};
  return {"shm", "tcp"};
}

INSTANTIATE_TEST_SUITE_P(Group, KillTest,
                         testing::Combine(testing::ValuesIn(engines()), testing::Values(100, 200000),
                                          testing::Values(0, 2)),
                         [](auto const& tested) {
                           return std::string(std::get<0>(tested.param)) + "_" +
                                  std::to_string(std::get<1>(tested.param)) + "_bytes_lag_" +
                                  std::to_string(std::get<2>(tested.param));
                         });

}  // namespace
}  // namespace headway::comm
