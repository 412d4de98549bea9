// SPDX-License-Identifier: Apache-2.0

// Entry point of the tests of libcomm. A test that hangs is ended after 150 s by a signal, so that the log names the
// test; otherwise the runner's own limit would end the whole program without a name.

#include <gtest/gtest.h>

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

constexpr unsigned kMaxTestSeconds = 150;
char running_test[256];  // Read by a signal handler, hence global and of fixed size.

extern "C" void name_the_hanging_test(int) {
  constexpr char kText[] = "\n[  FAILED  ] a test hangs: ";
  [[maybe_unused]] auto written = ::write(STDERR_FILENO, kText, sizeof kText - 1);
  written = ::write(STDERR_FILENO, running_test, std::strlen(running_test));
  written = ::write(STDERR_FILENO, "\n", 1);
  std::abort();
}

/// Ends the process if one test takes too long. A hang then names its test.
class Watchdog final : public testing::EmptyTestEventListener {
 public:
  Watchdog() { std::signal(SIGALRM, name_the_hanging_test); }
  void OnTestStart(testing::TestInfo const& test) override {
    std::snprintf(running_test, sizeof running_test, "%s.%s", test.test_suite_name(), test.name());
    ::alarm(kMaxTestSeconds);
  }
  void OnTestEnd(testing::TestInfo const&) override { ::alarm(0); }
};

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  testing::UnitTest::GetInstance()->listeners().Append(new Watchdog);
  return RUN_ALL_TESTS();
}
