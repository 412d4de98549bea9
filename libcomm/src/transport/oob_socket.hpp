// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/base/file_descriptor.hpp"
#include "headway/comm/endpoint.hpp"

#include <string_view>
#include <utility>
#include <vector>

namespace headway::comm {

/// Control socket to one peer whose messages travel another way. It carries OOB messages, and its end of file
/// means that the peer is gone.
class OobSocket {
 public:
  OobSocket() = default;
  /// Takes a connected stream socket.
  explicit OobSocket(base::FileDescriptor socket) : socket_(std::move(socket)) {}

  [[nodiscard]] bool valid() const { return socket_.valid(); }
  [[nodiscard]] int fd() const { return socket_.get(); }
  /// True if the peer has closed its end, even while OOB messages of it are still unread.
  [[nodiscard]] bool is_hung_up() const;
  /// Sends an OOB message; drops it on any error. OOB messages are the only traffic, so the socket buffer has room for
  /// many.
  void send(std::string_view text) const noexcept;
  /// Passes the complete OOB messages that arrived to `sink`, with `peer` as their source.
  /// @returns whether the peer may send more.
  bool receive(int peer, ArrivalSink& sink);

 private:
  base::FileDescriptor socket_;
  std::vector<char> input_;  ///< Bytes received of an incomplete message.
};

}  // namespace headway::comm
