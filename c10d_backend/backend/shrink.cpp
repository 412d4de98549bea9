// SPDX-License-Identifier: Apache-2.0

// Shrinking a failed group to its surviving ranks.
//
// Idea: libcomm finds out who is left and connects these ranks (GroupAdmin::shrink). This file builds the rest of a
// torch backend around the new group. It needs a store of its own, since the old one may have lived in a rank that
// died: new rank 0 listens on a free port of its own address and broadcasts that address through the new group.
//
// Example: rank 2 of 0 to 3 dies. The survivors 0, 1 and 3 get the new ranks 0, 1 and 2. New rank 0 opens a store,
// and `ranks` of the result is [0, 1, 3].
//
// Invariants:
// - The new store listens on the address by which ranks reach each other, not on all addresses of the host.
// - The old group has failed when this returns, so operations on it end with an error instead of waiting.
// - The survivors agree on how many all-to-alls of each channel, and how many other collectives, have ended on all of
//   them: `all_to_alls` and `collectives` of the result.

#include "backend/headway_backend.hpp"
#include "runtime/errors.hpp"
#include "runtime/interpreter.hpp"

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <utility>

namespace headway::c10d_backend {

namespace {

struct FreeAddresses {
  void operator()(addrinfo* list) const noexcept { freeaddrinfo(list); }
};

/// Listens on a numeric address and a free port.
/// @returns the socket and the port. TCPStore itself would listen on all addresses of the host, without authentication.
std::pair<int, std::uint16_t> listen_on(std::string const& address) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (getaddrinfo(address.c_str(), "0", &hints, &list) != 0) throw comm::SystemError("no address: " + address);
  std::unique_ptr<addrinfo, FreeAddresses> const owner(list);
  int const socket = ::socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (socket < 0) throw comm::SystemError("socket", errno, address);
  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  if (::bind(socket, list->ai_addr, list->ai_addrlen) != 0 || ::listen(socket, SOMAXCONN) != 0 ||
      ::getsockname(socket, reinterpret_cast<sockaddr*>(&bound), &length) != 0) {
    int const error = errno;
    ::close(socket);
    throw comm::SystemError("listen", error, address);
  }
  // The port has the same offset in both families.
  return {socket, ntohs(reinterpret_cast<sockaddr_in const*>(&bound)->sin_port)};
}

/// Address of the store on rank 0.
struct StoreAddress {
  std::array<char, INET6_ADDRSTRLEN> host{};
  std::uint16_t port = 0;
};

/// Creates a store on rank 0 of the new group. The store of the old group may have ended with a rank.
c10::intrusive_ptr<c10d::Store> make_store(comm::Group& group) {
  c10d::TCPStoreOptions options;
  options.isServer = group.rank() == 0;
  options.waitWorkers = false;
  c10::intrusive_ptr<c10d::TCPStore> store;
  StoreAddress where;
  if (options.isServer) {
    auto const address = group.monitor().own_address();
    auto const [socket, port] = listen_on(address);
    options.masterListenFd = socket;  // Owned by the store from here on.
    options.port = where.port = port;
    address.copy(where.host.data(), where.host.size() - 1);
    store = c10::make_intrusive<c10d::TCPStore>(address, options);
  }
  auto const operation = group.broadcast(std::as_writable_bytes(std::span(&where, 1)), 0, 0);
  comm::Status status = group.wait(*operation);
  if (!status.ok()) throw comm::OperationError(std::move(status));
  options.port = where.port;
  if (!options.isServer) store = c10::make_intrusive<c10d::TCPStore>(where.host.data(), options);
  return store;
}

}  // namespace

ShrunkBackend HeadwayBackend::shrink_to_survivors(std::vector<int> const& ranks_to_exclude,
                                                  std::chrono::milliseconds timeout) {
  auto const old = handle();
  ShrunkBackend result;
  translate_errors("shrink", [&] {
    auto shrunk = old->group().admin().shrink(ranks_to_exclude, timeout);
    auto options = copy_options();
    options->group_name += "/shrunk";
    if (auto& global_ranks = options->global_ranks_in_group; !global_ranks.empty()) {
      auto const before = std::exchange(global_ranks, {});
      for (int const rank : shrunk.ranks) global_ranks.push_back(before[static_cast<std::size_t>(rank)]);
    }
    auto store = make_store(*shrunk.group);
    result = {.backend = c10::make_intrusive<HeadwayBackend>(std::move(store), std::move(shrunk.group),
                                                             std::move(options), make_delegate_),
              .ranks = std::move(shrunk.ranks),
              .all_to_alls = std::move(shrunk.all_to_alls),
              .collectives = shrunk.collectives};
  });
  abort();  // Pending reductions would keep the old group alive until its timeout.
  return result;
}

c10::intrusive_ptr<c10d::Backend> HeadwayBackend::shrink(std::vector<std::int64_t> const& ranks_to_exclude,
                                                         int /*shrink_flags*/,
                                                         c10::intrusive_ptr<Options> const& opts_override) {
  TORCH_CHECK_VALUE(!opts_override, "headway: a group that is shrunk keeps its options");
  ReleasedGil const released;
  std::set<int> const excluded(ranks_to_exclude.begin(), ranks_to_exclude.end());
  auto const result = shrink_to_survivors({excluded.begin(), excluded.end()}, options_->group.connect_timeout);
  TORCH_CHECK_WITH(DistBackendError, result.ranks.size() + excluded.size() == static_cast<std::size_t>(getSize()),
                   "headway: ", getSize(), " ranks without ", excluded.size(), " should leave more than the ",
                   result.ranks.size(), " that answered; headway.shrink() finds out who is left");
  return result.backend;
}

}  // namespace headway::c10d_backend
