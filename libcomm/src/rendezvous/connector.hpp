#pragma once

#include "rendezvous/contact.hpp"
#include "rendezvous/meeting.hpp"

#include <string>
#include <vector>

namespace headway::comm {

/// Outcome of one attempt to connect.
struct Attempt {
  enum class Outcome {
    kConnected,
    kAgain,        ///< Not now; the same address may work later.
    kElsewhere,    ///< The rank is not behind this address; another may work.
    kRefused,      ///< The rank does not accept us: the secrets differ.
    kDisagreement  ///< The rank differs in a field of the agreement.
  };
  Outcome outcome{};
  FileDescriptor socket;
  std::string error;
};

/// Connects to `peer` at `address` and does the handshake. Ends early, with kAgain, when `interrupt_fd` is readable.
[[nodiscard]] Attempt try_to_connect(SocketAddress const& address, HandshakeSelf const& self, int peer,
                                     Contact const& contact, Deadline deadline, int interrupt_fd);

/// Where to reach a peer, best first: a local socket on the same host, then TCP as far as `engine` allows it.
[[nodiscard]] std::vector<SocketAddress> candidate_addresses(Contact const& peer, std::string const& own_host,
                                                             Engine engine);

}  // namespace headway::comm
