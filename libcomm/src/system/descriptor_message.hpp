// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/base/file_descriptor.hpp"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <span>

namespace headway::comm {

/// A message on a local socket for sendmsg() and recvmsg(): bytes and two file descriptors (SCM_RIGHTS).
class DescriptorMessage {
 public:
  /// `body` must outlive this object.
  explicit DescriptorMessage(std::span<std::byte> body) : part_{.iov_base = body.data(), .iov_len = body.size()} {
    header_.msg_iov = &part_;
    header_.msg_iovlen = 1;
    header_.msg_control = control_.data();
    header_.msg_controllen = control_.size();
  }
  DescriptorMessage(DescriptorMessage const&) = delete;
  DescriptorMessage& operator=(DescriptorMessage const&) = delete;

  [[nodiscard]] msghdr& header() { return header_; }
  /// Attaches two descriptors. The peer gets duplicates.
  void attach(std::array<int, 2> descriptors) {
    cmsghdr* const rights = CMSG_FIRSTHDR(&header_);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof descriptors);
    std::memcpy(CMSG_DATA(rights), descriptors.data(), sizeof descriptors);
  }
  /// Did the kernel close a descriptor of the message (MSG_CTRUNC) because this process may open no more files? Call it
  /// before take().
  [[nodiscard]] bool were_descriptors_truncated() const { return is_cut() && num_received_bytes() < 2 * sizeof(int); }
  /// Takes ownership of the received descriptors. Invalid ones if there were not exactly two. Descriptors that are
  /// never taken stay open.
  [[nodiscard]] std::array<base::FileDescriptor, 2> take() {
    std::array<int, 2> descriptors{-1, -1};
    std::size_t const num_bytes = num_received_bytes();
    if (cmsghdr* const rights = CMSG_FIRSTHDR(&header_); rights != nullptr && num_bytes > 0) {
      std::memcpy(descriptors.data(), CMSG_DATA(rights), std::min(num_bytes, sizeof descriptors));
    }
    std::array<base::FileDescriptor, 2> taken{base::FileDescriptor(descriptors[0]),
                                              base::FileDescriptor(descriptors[1])};
    if (is_cut() || num_bytes != sizeof descriptors) return {};
    return taken;
  }

 private:
  /// The kernel closed descriptors that did not fit: the limit of open files was reached, or more than two were sent.
  [[nodiscard]] bool is_cut() const { return (header_.msg_flags & MSG_CTRUNC) != 0; }
  [[nodiscard]] std::size_t num_received_bytes() const {
    cmsghdr const* const rights = CMSG_FIRSTHDR(&header_);
    bool const has_rights = rights != nullptr && rights->cmsg_level == SOL_SOCKET && rights->cmsg_type == SCM_RIGHTS;
    return has_rights ? rights->cmsg_len - CMSG_LEN(0) : 0;
  }

  iovec part_;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(2 * sizeof(int))> control_{};
  msghdr header_{};
};

}  // namespace headway::comm
