#pragma once

namespace headway::comm::tcp {

/// Whether everything that was written to the socket has reached the peer's kernel. True for what is no TCP socket.
[[nodiscard]] bool all_acknowledged(int socket);

/// Sends an acknowledgement that the kernel may be holding back (40 ms on Linux), for a peer that waits for it to
/// close.
void acknowledge_now(int socket) noexcept;

/// Whether the peer's kernel has not answered for about 10 s though there was something to answer. A peer that lives
/// but does not read answers: its window is closed, and TCP probes it. (TCP_USER_TIMEOUT does not tell the two apart.)
[[nodiscard]] bool peer_is_silent(int socket);

}  // namespace headway::comm::tcp
