// SPDX-License-Identifier: Apache-2.0

// Groups connect in spite of signals, and again under the same store and name.

#include "headway/comm/group.hpp"

#include <gtest/gtest.h>

#include <sys/time.h>

#include <atomic>
#include <csignal>
#include <future>
#include <vector>

namespace headway::comm {
namespace {

using std::chrono::seconds;

/// Raises a signal every millisecond. The kernel chooses the thread that it interrupts.
class SignalTimer {
 public:
  SignalTimer() {
    struct sigaction action {};
    action.sa_handler = [](int) { num_signals.fetch_add(1, std::memory_order_relaxed); };
    ::sigaction(SIGALRM, &action, &before_);
    itimerval const every_millisecond{.it_interval = {0, 1000}, .it_value = {0, 1000}};
    ::setitimer(ITIMER_REAL, &every_millisecond, nullptr);
  }
  ~SignalTimer() {
    itimerval const off{};
    ::setitimer(ITIMER_REAL, &off, nullptr);
    ::sigaction(SIGALRM, &before_, nullptr);
  }
  static inline std::atomic<int> num_signals = 0;  ///< Atomic, because any thread may get the signal.

 private:
  struct sigaction before_ {};
};

/// Connects `size` ranks as threads and runs a barrier. @returns for each rank its group's generation: a random id that
/// all ranks of the group share. If the barrier fails, its error text.
std::vector<std::string> connect_all(int size, Transport transport, Store& store) {
  std::vector<std::future<std::string>> pending;
  for (int rank = 0; rank < size; ++rank) {
    pending.push_back(std::async(std::launch::async, [&, rank] {
      GroupOptions options;
      options.transport = transport;
      options.connect_timeout = seconds(20);
      auto const group = Group::connect(rank, size, store, options);
      auto const barrier = group->barrier();
      Status const status = group->wait(*barrier);
      return status.ok() ? group->monitor().generation() : std::string(status.message());
    }));
  }
  std::vector<std::string> generations;
  for (auto& each : pending) generations.push_back(each.get());
  return generations;
}

class EveryTransport : public testing::TestWithParam<Transport> {};
INSTANTIATE_TEST_SUITE_P(Transports, EveryTransport,
                         testing::Values(Transport::kInproc, Transport::kAuto, Transport::kShm, Transport::kTcp));

TEST_P(EveryTransport, ConnectsUnderSignals) {
  SignalTimer const timer;
  auto const deadline = Clock::now() + seconds(20);
  for (int round = 0; round < 10 || (SignalTimer::num_signals == 0 && Clock::now() < deadline); ++round) {
    MemoryStore store;
    auto const generations = connect_all(4, GetParam(), store);
    for (auto const& each : generations) EXPECT_EQ(each, generations[0]);
  }
  EXPECT_GT(SignalTimer::num_signals, 0);
}

TEST_P(EveryTransport, ConnectsAgainUnderOneStoreAndName) {
  MemoryStore store;
  std::string last;
  for (int round = 0; round < 10; ++round) {
    auto const generations = connect_all(3, GetParam(), store);
    EXPECT_EQ(generations[0].size(), 32U) << generations[0];
    for (auto const& each : generations) EXPECT_EQ(each, generations[0]);
    EXPECT_NE(generations[0], last);
    last = generations[0];
  }
}

TEST(Connect, AShortSecretIsRefused) {
  MemoryStore store;
  GroupOptions options;
  options.secret = "7 bytes";  // A secret has at least 8.
  EXPECT_THROW(static_cast<void>(Group::connect(0, 1, store, options)), UsageError);
}

}  // namespace
}  // namespace headway::comm
