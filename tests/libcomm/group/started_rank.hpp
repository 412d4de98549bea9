// SPDX-License-Identifier: Apache-2.0

// Ranks as processes of their own, which tests may kill or stop: threads cannot show what a lost process leaves behind.
//
// Each process runs rank_process.cpp with its work as arguments, and writes "ready" when it exchanges. A test waits
// for that line of all ranks, so a signal hits them in the middle of an exchange and not while they connect.

#pragma once

#include "child_process.hpp"
#include "headway/comm/group.hpp"
#include "random_rounds.hpp"
#include "temporary_directory.hpp"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <optional>
#include <ostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace headway::comm {

inline std::vector<std::string> split(std::string const& text, char separator) {
  std::vector<std::string> words;
  std::istringstream stream(text);
  for (std::string word; std::getline(stream, word, separator);) words.push_back(word);
  return words;
}

/// A started rank_process and its output lines.
class StartedRank {
 public:
  explicit StartedRank(std::vector<std::string> const& arguments) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe2 failed");
    output_ = ends[0];
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    // The build defines the command with '|' between its words: rank_process, or an emulator that runs it.
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
  ~StartedRank() {
    kill();
    ::close(output_);
  }
  StartedRank(StartedRank const&) = delete;
  StartedRank& operator=(StartedRank const&) = delete;

  /// Process id as text, as in /proc.
  [[nodiscard]] std::string process() const { return std::to_string(pid_); }

  /// Sends SIGKILL and waits for the end.
  void kill() {
    signal(SIGKILL);
    collect();
  }
  void stop() { signal(SIGSTOP); }
  void resume() { signal(SIGCONT); }
  /// Makes it print "ready" again after some further exchanges.
  void ask() { signal(SIGUSR1); }

  /// Waits for its end. @returns the exit code, or -1 if a signal ended it.
  int collect() {
    if (pid_ > 0) {
      wait_status_ = wait_for_exit(pid_, std::chrono::seconds(120));
      pid_ = -1;
    }
    return WIFEXITED(wait_status_) ? WEXITSTATUS(wait_status_) : -1;
  }

  /// Next line of its output; none if `patience` passes or the process ends.
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
  void signal(int number) const {
    if (pid_ > 0) ::kill(pid_, number);
  }

  pid_t pid_ = -1;
  int wait_status_ = 0;
  int output_ = -1;     ///< Read end of the pipe from its stdout.
  std::string unread_;  ///< Output behind the last returned line.
};

/// Work of each rank of a group of processes; see rank_process.cpp.
struct RankWork {
  std::string transport;
  int size = 4;
  std::size_t bytes = 100;        ///< Bytes per block.
  int lag = 0;                    ///< max_lag: exchanges by which a rank may run ahead of the slowest.
  bool with_collectives = false;  ///< One collective or ring of messages follows each exchange.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
};

inline std::ostream& operator<<(std::ostream& out, RankWork const& work) {
  return out << work.size << " ranks, " << work.bytes << " bytes a block, bound " << work.lag
             << (work.with_collectives ? ", with collectives" : "");
}

/// Draws work of 2 to 4 ranks with a bound (max_lag) of up to 4. Slots have 4096 bytes, so some blocks exceed them.
inline RankWork draw_work(RandomRounds::Random& random, char const* transport) {
  constexpr std::array<std::size_t, 7> kBytes = {0, 8, 100, 3000, 5000, 20000, 200000};
  return {.transport = transport,
          .size = static_cast<int>(draw(random, 2, 4)),
          .bytes = kBytes[draw(random, 0, kBytes.size() - 1)],
          .lag = static_cast<int>(draw(random, 0, 4)),
          .with_collectives = draw(random, 0, 1) == 1};
}

/// A group whose ranks are processes.
class StartedGroup {
 public:
  explicit StartedGroup(RankWork const& work) {
    for (int rank = 0; rank < work.size; ++rank) {
      ranks_.push_back(std::make_unique<StartedRank>(std::vector<std::string>{
          std::to_string(rank), std::to_string(work.size), (directory_.path() / "store").string(), work.transport,
          std::to_string(work.bytes), std::to_string(work.lag), work.with_collectives ? "collectives" : "exchanges",
          std::to_string(work.timeout.count())}));
    }
  }

  [[nodiscard]] int size() const { return static_cast<int>(ranks_.size()); }
  [[nodiscard]] StartedRank& operator[](int rank) { return *ranks_[static_cast<std::size_t>(rank)]; }

  /// Whether the next line of each rank reports that it exchanges.
  [[nodiscard]] testing::AssertionResult is_exchanging() {
    for (int rank = 0; rank < size(); ++rank) {
      auto const line = (*this)[rank].read_line(std::chrono::seconds(30));
      if (line != "ready") return testing::AssertionFailure() << "rank " << rank << ": " << line.value_or("no word");
    }
    return testing::AssertionSuccess();
  }

 private:
  TemporaryDirectory directory_;
  std::vector<std::unique_ptr<StartedRank>> ranks_;
};

/// Transports between processes in this run: verbs if HEADWAY_TEST_RDMA is set, otherwise all others.
inline std::vector<char const*> transports_between_processes() {
  if (std::getenv("HEADWAY_TEST_RDMA") != nullptr) return {"verbs"};
  return {"shm", "tcp"};
}

}  // namespace headway::comm
