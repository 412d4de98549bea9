// SPDX-License-Identifier: Apache-2.0

// Ranks with a low limit of open files: errors while connecting, and connecting with few descriptors in flight.

#include "child_process.hpp"
#include "connect_in_threads.hpp"
#include "open_file_limit.hpp"
#include "temporary_directory.hpp"
#include "transport/shm/endpoint.hpp"

#include <gtest/gtest.h>

#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

namespace headway::comm {
namespace {

constexpr std::size_t kReceiveBufferBytes = 4096;

/// Connects two ranks whose process may open `num_files` more files. @returns each rank's error.
std::array<std::string, 2> connect_with_files(int num_files) {
  MemoryStore store;
  std::array<std::vector<ControlSocket>, 2> control_sockets;
  std::array<std::string, 2> errors;
  std::array<std::unique_ptr<Endpoint>, 2> endpoints;
  auto const on_both = [](auto const& work) {
    std::jthread const other([&] { work(1); });
    work(0);
  };
  on_both([&](int rank) {
    control_sockets[static_cast<std::size_t>(rank)] =
        connect_test_sockets(rank, 2, kReceiveBufferBytes, store, Transport::kShm);
  });
  {
    OpenFileLimit const limit(num_files);
    on_both([&](int rank) {
      auto const index = static_cast<std::size_t>(rank);
      try {
        endpoints[index] = make_shm_endpoint(rank, 2, std::move(control_sockets[index]),
                                             {.receive_buffer_bytes = kReceiveBufferBytes});
      } catch (std::exception const& error) {
        errors[index] = error.what();
      }
    });
  }
  return errors;
}

TEST(ShmDescriptors, WhoeverRunsOutOfFilesSaysSo) {
  if (kSanitizerNeedsFiles) GTEST_SKIP() << "the sanitizer opens files of its own";
  constexpr int kEnough = 40;
  int num_files = 0;
  for (; num_files < kEnough; ++num_files) {
    auto const errors = connect_with_files(num_files);
    if (errors[0].empty() && errors[1].empty()) break;
    bool is_told = false;
    for (auto const& error : errors) {
      bool const names_limit = error.find("files (ulimit -n)") != std::string::npos;
      is_told = is_told || names_limit;
      bool const is_victim = error.find("rank") != std::string::npos;  // Its peer ran out of files.
      EXPECT_TRUE(error.empty() || names_limit || is_victim) << num_files << " files: " << error;
    }
    EXPECT_TRUE(is_told) << num_files << " files: " << errors[0] << "; " << errors[1];
  }
  EXPECT_GT(num_files, 8) << "the limit was not met";
  EXPECT_LT(num_files, kEnough);
}

/// A rank in its own process, of an unprivileged user who may open `num_files`.
[[noreturn]] void connect_unprivileged(int rank, int size, rlim_t num_files, std::filesystem::path const& folder) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::alarm(60);
  rlimit const limit{.rlim_cur = num_files, .rlim_max = num_files};
  constexpr uid_t kNobody = 65534;
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) ::_exit(2);
  if (::geteuid() == 0 &&
      (::setresgid(kNobody, kNobody, kNobody) != 0 || ::setresuid(kNobody, kNobody, kNobody) != 0)) {
    ::_exit(2);
  }
  try {
    FileStore store(folder);
    auto control_sockets = connect_test_sockets(rank, size, kReceiveBufferBytes, store, Transport::kShm);
    auto const endpoint =
        make_shm_endpoint(rank, size, std::move(control_sockets), {.receive_buffer_bytes = kReceiveBufferBytes});
    ::_exit(0);
  } catch (std::exception const& error) {
    std::string const text = "rank " + std::to_string(rank) + ": " + error.what() + "\n";
    [[maybe_unused]] auto const written = ::write(STDERR_FILENO, text.data(), text.size());
    ::_exit(1);
  }
}

// All ranks send at the same time: 32 * 31 * 2 descriptors, of a user who may have 200 in flight.
TEST(ShmDescriptors, MoreMayBeOnTheirWayThanAUserMayHave) {
  constexpr int kRanks = 32;
  TemporaryDirectory const directory;
  std::filesystem::permissions(directory.path(), std::filesystem::perms::all);
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    pid_t const pid = ::fork();
    if (pid == 0) connect_unprivileged(rank, kRanks, 200, directory.path() / "store");
    ASSERT_GT(pid, 0);
    ranks.push_back(pid);
  }
  for (pid_t const pid : ranks) EXPECT_EQ(wait_for_exit(pid), 0);
}

}  // namespace
}  // namespace headway::comm
