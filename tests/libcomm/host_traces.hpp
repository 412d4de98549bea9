#pragma once

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace headway::comm {

inline bool is_named_temporary(std::string_view path) {
  return (path.starts_with("/dev/shm/") || path.starts_with("/tmp/")) && !path.ends_with(" (deleted)");
}

/// Paths below /dev/shm and /tmp that this process has mapped or open. Memory files without a name do not count, nor
/// does what the test runner redirected output to.
inline std::set<std::string> all_named_temporary_files_in_use() {
  std::set<std::string> found;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    // A shared mapping: libraries and programs below /tmp are private ones.
    auto const path_at = line.find('/');
    bool const shared = line.size() > 30 && line.substr(line.find(' '), 6).find('s') != std::string::npos;
    if (shared && path_at != std::string::npos && is_named_temporary(std::string_view(line).substr(path_at))) {
      found.insert(line.substr(path_at));
    }
  }
  for (auto const& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    if (entry.path().filename() == "1" || entry.path().filename() == "2") continue;
    std::error_code error;
    auto const target = std::filesystem::read_symlink(entry.path(), error);
    if (!error && std::filesystem::is_regular_file(target, error) && is_named_temporary(target.string())) {
      found.insert(target.string());
    }
  }
  return found;
}

/// Open when the program began: of whoever started it.
inline std::set<std::string> const inherited_temporary_files = all_named_temporary_files_in_use();

inline std::vector<std::string> named_temporary_files_in_use() {
  std::vector<std::string> own;
  for (auto const& path : all_named_temporary_files_in_use()) {
    if (!inherited_temporary_files.contains(path)) own.push_back(path);
  }
  return own;
}

/// Entries of /dev/shm and /tmp with "headway" in their names, but for the stores of tests that run at the same time.
inline std::set<std::string> named_headway_files() {
  std::set<std::string> found;
  for (char const* const directory : {"/dev/shm", "/tmp"}) {
    std::error_code error;
    for (auto const& entry : std::filesystem::directory_iterator(directory, error)) {
      std::string const name = entry.path().filename().string();
      if (name.find("headway") != std::string::npos && !name.starts_with("headway-store-")) {
        found.insert(entry.path().string());
      }
    }
  }
  return found;
}

inline std::size_t open_descriptors() {
  std::filesystem::directory_iterator const entries("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(entries), end(entries)));
}

}  // namespace headway::comm
