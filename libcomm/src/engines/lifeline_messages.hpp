#pragma once

#include <cstddef>
#include <span>

namespace headway::comm {

/// Sends a fixed-size message over a lifeline that no engine has taken yet, or receives one within a minute.
/// @throws SystemError naming `peer`.
void send_all(int socket, std::span<std::byte const> bytes, int peer);
void receive_all(int socket, std::span<std::byte> bytes, int peer);

}  // namespace headway::comm
