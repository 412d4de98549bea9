// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>

namespace headway::benchmarks {

/// Runs body(rank) in `ranks` forked processes; its result is the exit status of the process. If one fails, the others
/// get a few seconds to report and are then killed. @returns 0 if all returned 0, else 1.
int run_forked_ranks(int ranks, std::function<int(int)> const& body);

/// A new directory for forked ranks. The destructor removes it.
class TemporaryDirectory {
 public:
  /// @throws std::system_error
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(TemporaryDirectory const&) = delete;
  TemporaryDirectory& operator=(TemporaryDirectory const&) = delete;
  [[nodiscard]] std::filesystem::path const& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace headway::benchmarks
