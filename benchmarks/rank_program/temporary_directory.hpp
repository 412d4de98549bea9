#pragma once

#include <filesystem>

namespace headway::benchmarks {

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
