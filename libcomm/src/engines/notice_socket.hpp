#pragma once

#include "file_descriptor.hpp"
#include "headway/comm/endpoint.hpp"

#include <string_view>
#include <utility>
#include <vector>

namespace headway::comm {

/// The lifeline to one peer, where messages take another way: it carries notices, and its end says that the peer is
/// gone.
class NoticeSocket {
 public:
  NoticeSocket() = default;
  /// Takes a connected stream socket.
  explicit NoticeSocket(FileDescriptor socket) : socket_(std::move(socket)) {}

  [[nodiscard]] bool valid() const { return socket_.valid(); }
  [[nodiscard]] int fd() const { return socket_.get(); }
  /// Whether the other end is closed, whatever of its notices has not been received yet.
  [[nodiscard]] bool is_hung_up() const;
  /// Best effort: nothing else uses the socket's buffer, which has room for many notices.
  void send(std::string_view text) const noexcept;
  /// Reports what has come to `sink` as of `peer`. @returns whether the peer may send more.
  bool receive(int peer, ArrivalSink& sink);

 private:
  FileDescriptor socket_;
  std::vector<char> input_;  ///< Received part of notices.
};

}  // namespace headway::comm
