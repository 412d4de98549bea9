// SPDX-License-Identifier: Apache-2.0

// Body of a benchmark's rank with limits around it: it ends with its parent, and an alarm ends it if the system under
// test hangs.

#include "rank_program.hpp"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <iostream>

namespace headway::benchmarks {

int run_main(int argc, char** argv, std::string (*usage)(std::string const&),
             std::function<int(Arguments)> const& run) {
  constexpr int kUsageStatus = 2;
  std::string const name = std::filesystem::path(argv[0]).filename();
  Arguments const arguments(argv + 1, argv + argc);
  try {
    if (std::ranges::find(arguments, std::string_view("--help")) == arguments.end()) return run(arguments);
    std::cout << usage(name);
    return 0;
  } catch (SettingsError const& error) {
    std::cerr << name << ": " << error.what() << std::endl;
    return kUsageStatus;
  } catch (std::exception const& error) {
    std::cerr << name << ": " << error.what() << std::endl;
    return 1;
  }
}

int run_rank(RankSettings const& settings, RankIdentity identity, std::filesystem::path const& folder,
             std::function<void(RankBarrier&)> const& measure) try {
  // A rank ends with its parent. The alarm ends a rank that hangs inside the system under test. The barrier's time
  // limit ends a rank that waits for it.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::alarm(static_cast<unsigned>(settings.time_limit.count()) + 5);
  if (settings.bind) bind_to_core(identity.rank);
  RankBarrier barrier(folder / "barrier", identity.rank, identity.ranks, settings.time_limit);
  try {
    measure(barrier);
    return 0;
  } catch (...) {
    barrier.fail();
    throw;
  }
} catch (SettingsError const&) {
  throw;
} catch (std::exception const& error) {
  std::cerr << "rank " << identity.rank << ": " << error.what() << std::endl;
  return 1;
}

}  // namespace headway::benchmarks
