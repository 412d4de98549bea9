// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bootstrap/message.hpp"
#include "headway/base/file_descriptor.hpp"
#include "headway/comm/status.hpp"
#include "headway/comm/store.hpp"

#include <cstddef>
#include <functional>
#include <map>
#include <string>

namespace headway::comm {

/// The peer closed the connection before it sent a value.
class PeerClosed : public SystemError {
 public:
  using SystemError::SystemError;
};

/// Store of the two processes that a stream socket joins. set() sends the value, get() reads values until the wanted
/// one has come. The peer need not be authenticated: it can send few and short values only. For one thread.
class SocketStore final : public Store {
 public:
  /// @param socket connected and non-blocking.
  /// @param peer for error messages.
  /// @param while_waiting called about every 100 ms in get(); may be empty. Its exceptions pass through.
  SocketStore(base::FileDescriptor socket, std::string peer, std::function<void()> while_waiting = {});

  /// @throws SystemError if the peer has gone, or does not read.
  void set(std::string const& key, std::string_view value) override;
  /// @throws PeerClosed as soon as the peer closes the connection.
  std::string get(std::string const& key, std::chrono::milliseconds timeout) override;

  static constexpr std::size_t kMostValues = 16;       ///< Limit of values from the peer.
  static constexpr std::size_t kMostBytes = 64 << 10;  ///< Limit of a value with its key.

 private:
  /// Reads what has come. @returns whether the connection is open.
  bool read_available();
  void keep(Message const& message);

  base::FileDescriptor socket_;
  std::string peer_;
  std::function<void()> while_waiting_;
  MessageReader reader_{kMostBytes};
  std::map<std::string, std::string> values_;
  std::size_t num_received_ = 0;
};

}  // namespace headway::comm
