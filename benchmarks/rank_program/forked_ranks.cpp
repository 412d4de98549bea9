// SPDX-License-Identifier: Apache-2.0

// Runs ranks as forked processes. If one fails, the others get five seconds to end by themselves and are killed then,
// so no rank outlives the benchmark.

#include "forked_ranks.hpp"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <system_error>
#include <thread>

namespace headway::benchmarks {

namespace {

/// Time that the other ranks have to report their own errors after the first failure.
constexpr auto kGrace = std::chrono::seconds(5);

[[noreturn]] void run_child(pid_t parent, int rank, std::function<int(int)> const& body) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);  // The parent was gone before prctl().
  int const status = body(rank);
  std::fflush(nullptr);
  ::_exit(status);
}

void kill_all(std::set<pid_t> const& children) {
  for (pid_t const child : children) ::kill(child, SIGKILL);
}

}  // namespace

int run_forked_ranks(int ranks, std::function<int(int)> const& body) {
  std::set<pid_t> running;
  pid_t const parent = ::getpid();
  for (int rank = 0; rank < ranks; ++rank) {
    pid_t const child = ::fork();
    if (child == 0) run_child(parent, rank, body);
    if (child < 0) {
      int const error = errno;
      kill_all(running);
      throw std::system_error(error, std::generic_category(), "fork");
    }
    running.insert(child);
  }
  int failed = 0;
  std::chrono::steady_clock::time_point give_up;
  while (!running.empty()) {
    int status = 0;
    pid_t const ended = ::waitpid(-1, &status, failed != 0 ? WNOHANG : 0);
    if (ended > 0) {
      running.erase(ended);
      if (status != 0 && failed++ == 0) give_up = std::chrono::steady_clock::now() + kGrace;
    } else if (ended == 0) {
      if (std::chrono::steady_clock::now() > give_up) kill_all(running);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  return failed == 0 ? 0 : 1;
}

TemporaryDirectory::TemporaryDirectory() {
  std::string pattern = (std::filesystem::temp_directory_path() / "headway-bench-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) throw std::system_error(errno, std::generic_category(), "mkdtemp");
  path_ = pattern;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;  // A failure is ignored: nothing depends on the removal.
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace headway::benchmarks
