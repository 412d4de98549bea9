// SPDX-License-Identifier: Apache-2.0

// A process that gets the pid of an ended rank must not be read in its place.
//
// Over shm, the sender of a large message announces it (RTS, ready to send), and the receiver reads it from the memory
// of the sender's process, which the system call finds by its pid (process_vm_readv).

#include "child_process.hpp"
#include "headway/comm/group.hpp"
#include "headway/comm/store.hpp"
#include "temporary_directory.hpp"

#include <gtest/gtest.h>

#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <functional>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

namespace headway::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::size_t kBytes = std::size_t{1} << 20;

/// State shared by the processes of the test.
struct Shared {
  std::atomic<int> num_connected, receiver_is_stopped, has_sent_rts, impostor_is_ready;
  std::atomic<bool> is_ok;
  std::atomic<bool> names_peer;
};

/// Ranks are forked processes. A third process takes the pid of a killed one.
class PidReuseTest : public testing::Test {
 protected:
  static void wait_for(std::atomic<int> const& word, int value) {
    Deadline const deadline = deadline_after(seconds(20));
    while (word < value && Clock::now() < deadline) std::this_thread::sleep_for(milliseconds(1));
  }

  static pid_t start(std::function<void()> const& body) {
    pid_t const pid = fork();
    if (pid != 0) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    try {
      body();
    } catch (std::exception const& error) {
      std::fprintf(stderr, "process %d: %s\n", getpid(), error.what());
      _exit(1);
    }
    _exit(0);
  }

  /// Status of a receive. The group may have failed before it or fail with it.
  static Status receive_status(Group& group, std::span<std::byte> output) {
    try {
      return group.wait(*group.receive(output, 1, 1, 0));
    } catch (OperationError const& error) {
      return error.status();
    }
  }

  static void end(pid_t pid) {
    kill(pid, SIGKILL);
    wait_for_exit(pid);
  }

  /// Starts `body` as process `wanted`. @returns -1 if this host does not let a pid be chosen.
  static pid_t start_as(pid_t wanted, std::function<void()> const& body) {
    for (int attempt = 0; attempt < 200; ++attempt) {
      std::ofstream last_pid("/proc/sys/kernel/ns_last_pid");
      if (!(last_pid << wanted - 1 << std::flush)) return -1;
      pid_t const pid = start(body);
      if (pid == wanted) return pid;
      end(pid);
    }
    return -1;
  }

  template <typename T>
  static T* map_anonymous(std::size_t bytes, int flags) {
    return static_cast<T*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0));
  }
};

TEST_F(PidReuseTest, AProcessWithTheNumberOfALostRankIsNotReadInItsPlace) {
  TemporaryDirectory const directory;
  auto& shared = *map_anonymous<Shared>(sizeof(Shared), MAP_SHARED);
  auto* const block = map_anonymous<std::byte>(kBytes, MAP_PRIVATE);  // Has the same address in all processes.
  auto const connect = [&](int rank) {
    FileStore store(directory.path());
    GroupOptions options;
    options.transport = Transport::kShm;
    options.timeout = seconds(20);
    auto group = Group::connect(rank, 2, store, options);
    static_cast<void>(group->wait(*group->barrier()));
    ++shared.num_connected;
    return group;
  };
  pid_t const receiver = start([&] {
    auto const group = connect(0);
    wait_for(shared.impostor_is_ready, 1);
    std::vector<std::byte> output(kBytes);
    Status const status = receive_status(*group, output);
    bool const is_right = std::ranges::all_of(output, [](std::byte byte) { return byte == std::byte{0x11}; });
    shared.is_ok = !status.ok() || is_right;
    shared.names_peer = status.ok() || status.message().find("rank 1") != std::string_view::npos;
  });
  pid_t const sender = start([&] {
    auto const group = connect(1);
    wait_for(shared.receiver_is_stopped, 1);
    std::memset(block, 0x11, kBytes);
    auto const operation = group->send(std::span(block, kBytes), 0, 1, 0);
    shared.has_sent_rts = 1;
    std::this_thread::sleep_for(seconds(60));
  });
  wait_for(shared.num_connected, 2);
  ASSERT_EQ(shared.num_connected, 2);
  kill(receiver, SIGSTOP);  // The receiver must not see the sender's end before it sees the message.
  shared.receiver_is_stopped = 1;
  wait_for(shared.has_sent_rts, 1);
  end(sender);
  pid_t const impostor = start_as(sender, [&] {
    std::memset(block, 0xee, kBytes);
    shared.impostor_is_ready = 1;
    std::this_thread::sleep_for(seconds(60));
  });
  if (impostor >= 0) wait_for(shared.impostor_is_ready, 1);
  shared.impostor_is_ready = 1;
  kill(receiver, SIGCONT);
  int const status = wait_for_exit(receiver);
  if (impostor < 0) GTEST_SKIP() << "this host does not let a process number be chosen";
  end(impostor);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(shared.is_ok) << "status OK with another process's bytes";
  EXPECT_TRUE(shared.names_peer);
}

}  // namespace
}  // namespace headway::comm
