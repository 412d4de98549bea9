// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/comm/endpoint.hpp"
#include "headway/comm/status.hpp"

#include <cstddef>
#include <functional>
#include <span>
#include <string>

namespace headway::comm {

/// Deadline for setting up connections to peers, and a callback that runs about every 100 ms while waiting.
struct SetupPatience {
  Deadline deadline = Clock::now() + std::chrono::seconds(60);
  std::function<void()> while_waiting = {};
};

/// A peer closed its connection during setup. The reason may have arrived by another way.
class PeerGoneError : public SystemError {
 public:
  explicit PeerGoneError(int peer);
};

/// Waits until `socket` has `events` or an error, which the next call on it reports.
/// @throws SystemError naming `peer` at the deadline; exceptions of while_waiting() pass through.
void wait_for_peer(int socket, short events, int peer, SetupPatience const& patience);
/// Handles the failure (errno) of `call` on `socket`: returns at once after EINTR, waits after EAGAIN, otherwise
/// throws.
/// @throws PeerGoneError if the peer closed the connection; SystemError naming `call` and `peer` for other errors.
void wait_or_throw(char const* call, int socket, short events, int peer, SetupPatience const& patience);

/// Send or receive exactly `bytes` over a control socket, before a transport uses it.
/// @throws PeerGoneError; SystemError naming `peer`.
void send_all(int socket, std::span<std::byte const> bytes, int peer, SetupPatience const& patience);
void receive_all(int socket, std::span<std::byte> bytes, int peer, SetupPatience const& patience);

}  // namespace headway::comm
