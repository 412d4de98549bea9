#pragma once

#include <filesystem>

namespace headway::benchmarks {

/// A directory of its own for ranks that are forked, removed when they have ended.
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
