// SPDX-License-Identifier: Apache-2.0
#include "headway/base/open_files.hpp"

#include "headway/base/status.hpp"

#include <dirent.h>
#include <sys/resource.h>

#include <cerrno>
#include <memory>

namespace headway::base {
namespace {

std::size_t soft_limit() {
  rlimit limit{};
  return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 ? static_cast<std::size_t>(limit.rlim_cur) : RLIM_INFINITY;
}

/// Number of open files of this process; 0 if it is not known.
std::size_t count_open_files() {
  std::unique_ptr<DIR, int (*)(DIR*)> const folder(::opendir("/proc/self/fd"), &::closedir);
  if (!folder) return errno == EMFILE ? soft_limit() : 0;
  std::size_t count = 0;
  while (dirent const* const entry = ::readdir(folder.get())) count += entry->d_name[0] != '.' ? 1u : 0u;
  return count - 1;  // Not counting the folder itself.
}

}  // namespace

bool is_out_of_files(int error_number) { return error_number == EMFILE || error_number == ENFILE; }

std::string open_files_advice(int error_number) {
  if (error_number == ENFILE) return "this host may open no more files (sysctl fs.file-max)";
  if (error_number != EMFILE) return "";
  return "this process may open " + std::to_string(soft_limit()) +
         " files (ulimit -n); with a group of R ranks it needs about " + std::to_string(open_files_of_ranks(0)) +
         " + " + std::to_string(open_files_of_ranks(1) - open_files_of_ranks(0)) + " R";
}

void expect_free_files(std::size_t num_files, int num_ranks) {
  std::size_t const limit = soft_limit(), num_open = count_open_files();
  if (num_open + num_files <= limit) return;
  throw SystemError("too few open files: this process may open " + std::to_string(limit) +
                    " files (ulimit -n) and has " + std::to_string(num_open) + " open; a group of " +
                    std::to_string(num_ranks) + " ranks needs about " + std::to_string(open_files_of_ranks(num_ranks)) +
                    ", here at least " + std::to_string(num_files) + " more");
}

}  // namespace headway::base
