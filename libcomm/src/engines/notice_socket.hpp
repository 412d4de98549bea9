#pragma once

#include "file_descriptor.hpp"
#include "headway/comm/endpoint.hpp"

#include <string_view>
#include <utility>
#include <vector>

namespace headway::comm {

/// Lifeline (control socket) to one peer whose messages travel another way. It carries notices, and its end of file
/// means that the peer is gone.
class NoticeSocket {
 public:
  NoticeSocket() = default;
  /// Takes a connected stream socket.
  explicit NoticeSocket(FileDescriptor socket) : socket_(std::move(socket)) {}

  [[nodiscard]] bool valid() const { return socket_.valid(); }
  [[nodiscard]] int fd() const { return socket_.get(); }
  /// True if the peer has closed its end, even while notices of it are still unread.
  [[nodiscard]] bool is_hung_up() const;
  /// Sends a notice; drops it on any error. Notices are the only traffic, so the socket buffer has room for many.
  void send(std::string_view text) const noexcept;
  /// Passes the complete notices that arrived to `sink`, with `peer` as their source.
  /// @returns whether the peer may send more.
  bool receive(int peer, ArrivalSink& sink);

 private:
  FileDescriptor socket_;
  std::vector<char> input_;  ///< Bytes received of an incomplete notice.
};

}  // namespace headway::comm
