// SPDX-License-Identifier: Apache-2.0

// Traces of a process on its host: files with names in /dev/shm and /tmp, and open descriptors.
//
// The library shares memory without names, so that a killed job leaves nothing. The functions look at the process
// (/proc/PID/maps and fd) instead of at the directories, since other programs of the host use these too.

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

inline std::set<std::string> all_named_temporary_files_of(std::string const& process) {
  std::set<std::string> found;
  std::ifstream maps("/proc/" + process + "/maps");
  for (std::string line; std::getline(maps, line);) {
    // Only shared mappings count. Libraries and programs below /tmp are mapped private.
    auto const path_at = line.find('/');
    bool const shared = line.size() > 30 && line.substr(line.find(' '), 6).find('s') != std::string::npos;
    if (shared && path_at != std::string::npos && is_named_temporary(std::string_view(line).substr(path_at))) {
      found.insert(line.substr(path_at));
    }
  }
  for (auto const& entry : std::filesystem::directory_iterator("/proc/" + process + "/fd")) {
    if (entry.path().filename() == "1" || entry.path().filename() == "2") continue;
    std::error_code error;
    auto const target = std::filesystem::read_symlink(entry.path(), error);
    if (!error && std::filesystem::is_regular_file(target, error) && is_named_temporary(target.string())) {
      found.insert(target.string());
    }
  }
  return found;
}

/// Files that were open when the program began; they belong to its parent.
inline std::set<std::string> const inherited_temporary_files = all_named_temporary_files_of("self");

/// Paths below /dev/shm and /tmp that a process has mapped or open. Memory files without a name do not count, and
/// neither do inherited files or the files of its output. The process is inspected instead of the directories, so other
/// programs of the host do not matter.
inline std::vector<std::string> named_temporary_files_of(std::string const& process = "self") {
  std::vector<std::string> own;
  for (auto const& path : all_named_temporary_files_of(process)) {
    if (!inherited_temporary_files.contains(path)) own.push_back(path);
  }
  return own;
}

inline std::size_t open_descriptors() {
  std::filesystem::directory_iterator const entries("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(entries), end(entries)));
}

}  // namespace headway::comm
