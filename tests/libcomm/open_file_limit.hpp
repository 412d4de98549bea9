// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

namespace headway::comm {

/// Sanitizers test with a pipe if memory is readable. Without free descriptors they report false errors.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitizerNeedsFiles = true;
#else
inline constexpr bool kSanitizerNeedsFiles = false;
#endif

/// While it lives, this process may open `num_files` more files, or a few more if there are gaps in the
/// descriptor numbers.
class OpenFileLimit {
 public:
  explicit OpenFileLimit(int num_files) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    int const next = ::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);
    ::close(next);
    rlimit const lower{.rlim_cur = static_cast<rlim_t>(next + num_files), .rlim_max = before_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &lower);
  }
  OpenFileLimit(OpenFileLimit const&) = delete;
  OpenFileLimit& operator=(OpenFileLimit const&) = delete;
  ~OpenFileLimit() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

}  // namespace headway::comm
