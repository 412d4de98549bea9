// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/epoll.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <stdexcept>

namespace headway::comm {

/// Whether epoll reports `fd` as readable within `patience`.
inline bool is_readable(int fd, std::chrono::milliseconds patience) {
  int const epoll_fd = ::epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{};
  event.events = EPOLLIN;
  if (epoll_fd < 0 || ::epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0) {
    if (epoll_fd >= 0) ::close(epoll_fd);
    throw std::runtime_error("epoll refuses descriptor " + std::to_string(fd));
  }
  int found = 0;
  do {
    found = ::epoll_wait(epoll_fd, &event, 1, static_cast<int>(patience.count()));
  } while (found < 0 && errno == EINTR);
  ::close(epoll_fd);
  return found > 0;
}

}  // namespace headway::comm
