// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace headway::comm::tcp {

/// True if the peer's kernel has acknowledged everything written to `socket`. For a local socket: if the peer has read
/// it.
[[nodiscard]] bool all_acknowledged(int socket);

/// Sends an acknowledgement that the kernel may be delaying (40 ms on Linux). A peer may wait for it in order to close.
void acknowledge_now(int socket) noexcept;

/// True if the peer's kernel has left retransmits or probes unanswered for about 10 s. A live peer that does not read
/// still answers the probes of its closed window; TCP_USER_TIMEOUT cannot tell the two apart.
[[nodiscard]] bool peer_is_silent(int socket);

}  // namespace headway::comm::tcp
