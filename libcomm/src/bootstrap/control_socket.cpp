// SPDX-License-Identifier: Apache-2.0

// Bootstrap of one rank, from its options to its control sockets: opens listeners, runs Bootstrap, and turns each
// kind of failure into an error here and an entry of the store for the other ranks.

#include "bootstrap/control_socket.hpp"

#include "bootstrap/bootstrap.hpp"
#include "bootstrap/handshake.hpp"
#include "bootstrap/rank_address.hpp"
#include "bootstrap/store_keys.hpp"
#include "headway/base/open_files.hpp"
#include "system/random.hpp"
#include "system/sockets.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace headway::comm {
namespace {

/// Descriptors needed besides one per peer: listeners, epoll, the store's.
constexpr std::size_t kFilesToConnect = 8;

/// The addresses at which peers can connect to this rank, and the sockets that listen there.
struct Reachability {
  RankAddress rank_address;
  std::vector<Bootstrap::Listener> listeners;
};

// Opens the listeners of this rank. The highest rank accepts no connection and needs none.
Reachability become_reachable(HandshakeSelf const& self, GroupOptions const& options) {
  Reachability result;
  // A rank that only connects binds its sockets to the interface too. A bad interface must be found here, where this
  // rank can still report it.
  if (options.transport != Transport::kShm && !options.interface.empty()) {
    static_cast<void>(addresses_of_interface(options.interface));
  }
  result.rank_address.instance = self.instance;
  // With transport shm, ranks share memory even if HEADWAY_HOST_ID declares them to be on several hosts.
  result.rank_address.host = options.transport == Transport::kShm ? physical_host_identity() : host_identity();
  if (self.rank == self.size - 1) return result;
  if (options.transport != Transport::kTcp) {
    result.rank_address.local_name = "headway-" + to_hex(self.instance);
    result.listeners.push_back({listen_on(SocketAddress::local(result.rank_address.local_name)), true});
  }
  if (options.transport != Transport::kShm) {
    for (auto& tcp : listen_tcp(options.interface)) {
      std::ranges::copy(tcp.reachable_at, std::back_inserter(result.rank_address.addresses));
      result.listeners.push_back({std::move(tcp.socket), false});
    }
  }
  return result;
}

// If no listener can be opened, the others must hear why instead of waiting for this rank until their deadline. It
// cannot be reached, so it connects to them from any address.
Reachability become_reachable_or_fail(HandshakeSelf const& self, GroupOptions const& options, StoreKeys& keys,
                                      Deadline deadline) {
  try {
    return become_reachable(self, options);
  } catch (std::exception const& error) {
    GroupOptions anywhere = options;
    anywhere.interface.clear();
    RankAddress nowhere;
    nowhere.instance = self.instance;
    Bootstrap(self, nowhere, {}, keys, anywhere, deadline)
        .send_early_failure({.origin = self.rank, .text = error.what()});
    throw;
  }
}

void check_arguments(int rank, Agreement const& agreement) {
  expects(agreement.options != nullptr, "an agreement needs options");
  expects(agreement.size >= 1, "size is " + std::to_string(agreement.size) + "; it must be at least 1");
  expects(rank >= 0 && rank < agreement.size,
          "rank is " + std::to_string(rank) + "; it must be in [0, " + std::to_string(agreement.size) + ")");
  expects(agreement.options->transport != Transport::kInproc, "ranks of transport inproc need no control sockets");
  expects(agreement.options->name.size() <= 4096, "the group's name is longer than 4096 bytes");
}

}  // namespace

std::string draw_generation() { return to_hex(random_bytes<InstanceId().size()>()); }

BootstrapResult run_bootstrap(int rank, Agreement const& agreement, Store& store, Deadline deadline) {
  check_arguments(rank, agreement);
  if (agreement.size == 1) return {.control_sockets = std::vector<ControlSocket>(1), .generation = draw_generation()};
  GroupOptions const& options = *agreement.options;
  HandshakeSelf self{.rank = rank,
                     .size = agreement.size,
                     .instance = random_bytes<InstanceId().size()>(),
                     .secret = options.secret,
                     .fields = fields_of(agreement)};
  std::string const prefix = could_not_connect(rank, options);
  StoreKeys keys(store, options.name);
  std::string generation;  // Empty until the bootstrap has failed.
  // Records that this process gave the attempt up, so that a retry does not take its own old failure for a new one.
  auto const conclude = [&](BootstrapFailure const& failure) {
    if (generation.empty()) return;
    StoreKeys::conclude(generation, rank);
    // Rank 0 also posts failures of others, for ranks that would connect to it later.
    if (failure.origin == rank || rank == 0) keys.post_failure(generation, failure);
  };
  try {
    // Running out of descriptors later would look like peers that do not answer.
    base::expect_free_files(static_cast<std::size_t>(agreement.size - 1) + kFilesToConnect, agreement.size);
    auto [rank_address, listeners] = become_reachable_or_fail(self, options, keys, deadline);
    Bootstrap bootstrap(std::move(self), std::move(rank_address), std::move(listeners), keys, options, deadline);
    try {
      auto control_sockets = bootstrap.run();
      return {.control_sockets = std::move(control_sockets), .generation = bootstrap.generation()};
    } catch (...) {
      generation = bootstrap.generation();
      throw;
    }
  } catch (RefusedError const& error) {
    throw SystemError(prefix + error.what());
  } catch (BootstrapError const& error) {
    conclude(error.failure());
    throw SystemError(prefix + error.failure().seen_by(rank));
  } catch (UsageError const& error) {
    conclude({.origin = rank, .text = error.what()});
    throw;
  } catch (SystemError const& error) {
    conclude({.origin = rank, .text = error.what()});
    throw SystemError(prefix + error.what());
  } catch (...) {
    conclude({.origin = rank, .text = "its caller gave up connecting"});
    throw;
  }
}

void post_setup_failure(int rank, GroupOptions const& options, Store& store, std::string const& generation,
                        std::string const& text) noexcept {
  StoreKeys::conclude(generation, rank);
  StoreKeys(store, options.name).post_failure(generation, {.origin = rank, .text = text});
}

std::optional<std::string> find_setup_failure(int rank, GroupOptions const& options, Store& store,
                                              std::string const& generation) {
  StoreKeys keys(store, options.name);
  StoreKeys::conclude(generation, rank);
  auto const posted = keys.find_failure(generation, Clock::now() + std::chrono::seconds(1));
  return posted ? std::optional(posted->failure.seen_by(rank)) : std::nullopt;
}

std::string could_not_connect(int rank, GroupOptions const& options) {
  std::string const group = options.name.empty() ? "" : " of group '" + options.name + "'";
  return "rank " + std::to_string(rank) + group + " could not connect: ";
}

std::vector<ControlSocket> connect_control_sockets(int rank, Agreement const& agreement, Store& store,
                                                   Deadline deadline) {
  auto control_sockets = run_bootstrap(rank, agreement, store, deadline).control_sockets;
  for (auto const& each : control_sockets) {
    if (each.fd.valid()) set_blocking(each.fd.get());
  }
  return control_sockets;
}

}  // namespace headway::comm
