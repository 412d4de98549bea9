// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/base/file_descriptor.hpp"
#include "headway/comm/status.hpp"

#include <poll.h>
#include <sys/epoll.h>

#include <cerrno>
#include <string_view>

namespace headway::comm {

/// Creates an epoll descriptor. @throws SystemError that names `owner`.
inline base::FileDescriptor make_epoll(std::string_view owner) {
  base::FileDescriptor epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) throw SystemError("epoll_create1", errno, owner);
  return epoll;
}

/// Makes `epoll` readable while `fd` is. Events carry `fd`. @throws SystemError that names `owner`.
inline void watch(base::FileDescriptor const& epoll, int fd, std::string_view owner) {
  epoll_event event{.events = EPOLLIN, .data = {.fd = fd}};
  if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) != 0) throw SystemError("epoll_ctl", errno, owner);
}

/// True if a read from `fd` would not block: input, end of file or an error is pending.
inline bool is_readable(int fd) {
  pollfd entry{.fd = fd, .events = POLLIN, .revents = 0};
  return ::poll(&entry, 1, 0) > 0;
}

}  // namespace headway::comm
