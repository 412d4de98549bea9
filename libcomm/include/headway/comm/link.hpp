// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/comm/group.hpp"
#include "headway/comm/group_options.hpp"

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

// A link joins two processes: one listens on a fixed port, the other dials it. It is a group of two ranks, 0 at the
// listener and 1 at the side that dialled, with a group's handshake, transports, time limits and flight records. Each
// link fails alone. So processes with different roles can come and go one by one, which the ranks of one group cannot.
//
//   comm::LinkListener listener("0.0.0.0:7000", options);             // a server
//   for (;;) if (auto link = listener.accept(std::chrono::seconds(1))) ...  // a group of two for each peer
//
//   auto link = comm::dial("ps-0.ps:7000", options);                  // its client
//
// A link with slots of 4 KiB costs 75 KiB over shm and 100 KiB over tcp, 5 or 6 descriptors, and no thread of its own
// (docs/design/links.md).

namespace headway::comm {

/// Peers that dialled and were not joined.
struct LinkRefusals {
  std::uint64_t count = 0;
  std::string last_reason;
};

/// Listens for peers, and joins those that dial. Thread-safe.
class LinkListener {
 public:
  /// @param address "HOST:PORT", with a numeric address of this host or a wildcard address: "0.0.0.0:7000",
  ///   "[::]:7000". With port 0 the system chooses a port.
  /// @param options those of all links. Both sides need the same name and secret, and agree on what ranks of a group
  ///   agree on. A peer has kLongestJoin, or connect_timeout if that is shorter, and 5 s to send the name.
  ///   `while_connecting` is not called.
  /// @throws UsageError if the address is malformed or not numeric, there is no secret, or the transport is inproc.
  /// @throws SystemError if nobody can listen there.
  LinkListener(std::string const& address, GroupOptions options);
  /// Waits for joins that have begun, and ends links that nobody accepted. A forked child leaves all to its parent.
  ~LinkListener();
  LinkListener(LinkListener const&) = delete;
  LinkListener& operator=(LinkListener const&) = delete;

  /// Address with the port that was bound.
  [[nodiscard]] std::string const& address() const;
  /// Waits for the next link. @returns null when `timeout` passes first, or after close().
  [[nodiscard]] std::unique_ptr<Group> accept(std::chrono::milliseconds timeout);
  /// Stops listening. Links that were accepted go on, and the others end.
  void close();
  [[nodiscard]] LinkRefusals refusals() const;

  static constexpr std::chrono::seconds kLongestJoin{10};
  /// Peers that are joined at a time, or wait for accept(). A peer that has sent no name gives its place to the next
  /// one. Others wait in the backlog of the socket.
  static constexpr int kMostPending = 32;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// Dials a listener. Waits until somebody listens there, up to options.connect_timeout.
/// @param address "HOST:PORT". The host may be a name, which is looked up at each try.
/// @throws UsageError if the address or an option is wrong; SystemError that names the address and the reason, such as
///   another secret, name or setting at the listener. Exceptions of options.while_connecting pass through.
[[nodiscard]] std::unique_ptr<Group> dial(std::string const& address, GroupOptions const& options);

}  // namespace headway::comm
