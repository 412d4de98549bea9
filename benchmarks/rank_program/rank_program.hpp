#pragma once

#include "meeting.hpp"
#include "options.hpp"

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>

namespace headway::benchmarks {

/// Which of how many ranks this process is.
struct RankIdentity {
  int rank = 0;
  int ranks = 1;
};

/// What the command line of every program may ask for.
struct RankSettings {
  bool bind = false;
  std::chrono::seconds time_limit{300};
};

/// The whole of main(): run(arguments), or usage(name of the program) where they have --help. Errors are one line on
/// stderr. @returns the exit status: that of `run`, 2 for a SettingsError, 1 for any other error.
int run_main(int argc, char** argv, std::string (*usage)(std::string const&), std::function<int(Arguments)> const& run);

/// The whole of one rank: measure(meeting of the ranks that share `folder`), under the limits of `settings`. Errors are
/// one line on stderr. @returns the exit status. @throws SettingsError if `measure` does.
int run_rank(RankSettings const& settings, RankIdentity identity, std::filesystem::path const& folder,
             std::function<void(Meeting&)> const& measure);

}  // namespace headway::benchmarks
