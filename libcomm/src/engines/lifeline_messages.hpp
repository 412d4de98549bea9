#pragma once

#include "headway/comm/endpoint.hpp"
#include "headway/comm/status.hpp"

#include <cstddef>
#include <functional>
#include <span>
#include <string>

namespace headway::comm {

/// How long engines wait for their peers while they are made, and what is called about every 100 ms meanwhile.
struct SetupPatience {
  Deadline deadline = Clock::now() + std::chrono::seconds(60);
  std::function<void()> while_waiting = {};
};

/// A peer closed its connection before all engines were ready; it may have told why elsewhere.
class PeerGoneError : public SystemError {
 public:
  explicit PeerGoneError(int peer);
};

/// Waits until `socket` has `events` (or an error, which the next call on it shows). @throws SystemError naming `peer`
/// at the deadline, and what while_waiting() throws.
void wait_for_peer(int socket, short events, int peer, SetupPatience const& patience);
/// The same for a call on `socket` that failed with errno: @throws the error unless the call is worth another try.
void wait_or_throw(char const* call, int socket, short events, int peer, SetupPatience const& patience);

/// Sends a fixed-size message over a lifeline that no engine uses yet, or receives one.
/// @throws PeerGoneError, SystemError naming `peer`.
void send_all(int socket, std::span<std::byte const> bytes, int peer, SetupPatience const& patience);
void receive_all(int socket, std::span<std::byte> bytes, int peer, SetupPatience const& patience);

}  // namespace headway::comm
