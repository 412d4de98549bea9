// SPDX-License-Identifier: Apache-2.0

// Connecting a group: check the options, connect the ranks, choose a transport per peer, and make the group.
//
// Example: 2 hosts with 2 ranks each, transport "auto", RDMA devices that reach each other. Each rank has a control
// socket to each of the other three, for set-up, out-of-band (OOB) messages and as a sign of life. Rank 0 reaches rank
// 1 by shared memory and ranks 2 and 3 by RDMA. The first transport, shm, provides the receive buffer, and the RDMA
// transport registers the same memory, so a message is found at one place whichever way it came. A CompositeEndpoint
// forwards each call to the transport of its peer.
//
// Invariant: the group is made only when all ranks have made all transports (await_transports_of_peers()): else a
// fast rank could put into memory that a slow one has not registered.
//
// Failures: a rank that fails closes its sockets, which its peers see as a peer that is gone. They then look in the
// store for the reason that it posted there, so that all ranks tell the same cause.

#include "transport/checked/endpoint.hpp"
#include "transport/composite/endpoint.hpp"
#include "transport/inproc/endpoint.hpp"
#include "transport/rdma_reach.hpp"
#include "transport/shm/endpoint.hpp"
#include "transport/tcp/endpoint.hpp"
#if HEADWAY_HAS_VERBS
#include "transport/verbs/device.hpp"
#include "transport/verbs/endpoint.hpp"
#endif
#include "bootstrap/control_socket.hpp"
#include "group/group_impl.hpp"
#include "group/option_check.hpp"
#include "headway/base/file_descriptor.hpp"
#include "headway/base/log.hpp"
#include "system/sockets.hpp"
#include "transport/connection_setup.hpp"
#include "transport/describe_connection.hpp"
#include "transport/verbs/limits.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <utility>

namespace headway::comm {

namespace {

constexpr std::size_t kMaxFlightRecords = std::size_t{1} << 20;

constexpr std::size_t kMaxMessageSlotBytes = std::size_t{1} << 20;

/// Largest receive memory of a rank: the shm transport counts its 64-byte units in 32 bits.
constexpr std::size_t kMaxReceiveBytes = std::size_t{1} << 38;

/// Refuses options whose receive memory exceeds the limit. The lag of a rank is the number of exchanges that it has
/// started and a peer has not. A channel has 2 (max_lag_limit + 1) slots per source, each for the block of
/// one exchange, so that a rank that is ahead overwrites nothing (docs/bounded_lag.md). The limits of the factors keep
/// their product below 2^64.
void check_receive_memory(int size, GroupOptions const& options) {
  expects(options.slot_bytes <= kMaxReceiveBytes, "slot_bytes must be at most " + std::to_string(kMaxReceiveBytes) +
                                                      ", not " + std::to_string(options.slot_bytes));
  auto const slots = 2 * (static_cast<std::size_t>(options.max_lag_limit) + 1) *
                     static_cast<std::size_t>(options.num_channels) * static_cast<std::size_t>(size);
  expects(
      slots <= kMaxReceiveBytes / options.slot_bytes &&
          ReceiveLayout::of(size, options).total_bytes() <= kMaxReceiveBytes,
      "slot_bytes " + std::to_string(options.slot_bytes) + " times " + std::to_string(slots) +
          " slots (2 (max_lag_limit + 1) for each of the channels and ranks) exceeds the largest receive memory of " +
          std::to_string(kMaxReceiveBytes) + " bytes: lower slot_bytes, max_lag_limit or num_channels");
}

}  // namespace

void check_options(int rank, int size, GroupOptions& options) {
  expects(size >= 1 && rank >= 0 && rank < size,
          "rank " + std::to_string(rank) + " is not in a group of " + std::to_string(size));
  expects(options.max_lag >= 0, "max_lag must be 0 or more, not " + std::to_string(options.max_lag));
  if (options.max_lag_limit < 0) options.max_lag_limit = options.max_lag;
  expects(options.max_lag <= options.max_lag_limit, "max_lag is above max_lag_limit");
  expects(options.max_lag_limit <= 1024, "max_lag_limit must be at most 1024");
  expects(options.num_channels >= 1 && options.num_channels <= kMaxAllToAllChannels,
          "num_channels must be 1 to " + std::to_string(kMaxAllToAllChannels));
  expects(options.slot_bytes >= 64, "slot_bytes must be at least 64");
  expects(options.message_slot_bytes >= 64 && options.message_slot_bytes <= kMaxMessageSlotBytes,
          "message_slot_bytes must be 64 to " + std::to_string(kMaxMessageSlotBytes) + ", not " +
              std::to_string(options.message_slot_bytes));
  expects(
      options.rdma_rails >= 1 && options.rdma_rails <= verbs::kMaxRails,
      "rdma_rails must be 1 to " + std::to_string(verbs::kMaxRails) + ", not " + std::to_string(options.rdma_rails));
  expects(options.flight_records <= kMaxFlightRecords,
          "flight_records must be at most " + std::to_string(kMaxFlightRecords));
  expects(options.secret.empty() || options.secret.size() >= kMinSecretBytes,
          "secret is " + std::to_string(options.secret.size()) + " bytes long; it must have at least " +
              std::to_string(kMinSecretBytes) + ", for instance from `openssl rand -hex 32`");
  check_receive_memory(size, options);
  options.timeout = std::min(options.timeout, kLongestTimeout);
  options.connect_timeout = std::min(options.connect_timeout, kLongestTimeout);
  if (options.flight_records > 0) options.flight_records = std::bit_ceil(options.flight_records);
}

namespace {

/// How a peer is reached. Transports are made in this order; the first one provides the receive memory of all.
enum class Route { kShm, kVerbs, kTcp, kSelf };
constexpr std::array kTransportRoutes{Route::kShm, Route::kVerbs, Route::kTcp};

/// Moves out the control sockets to the peers reached by `route`; the others stay.
std::vector<ControlSocket> take(std::vector<ControlSocket>& control_sockets, std::vector<Route> const& routes,
                                Route route) {
  std::vector<ControlSocket> taken(control_sockets.size());
  for (std::size_t peer = 0; peer < control_sockets.size(); ++peer) {
    if (routes[peer] == route) taken[peer] = std::move(control_sockets[peer]);
  }
  return taken;
}

bool is_remote(ControlSocket const& control_socket) { return control_socket.fd.valid() && !control_socket.same_host; }

/// The own address that most peers on other hosts were reached with. Loopback addresses do not count: they serve this
/// host only.
std::string choose_own_address(std::vector<ControlSocket> const& control_sockets, GroupOptions const& options) {
  std::map<std::string, int> uses;
  for (auto const& each : control_sockets) {
    auto const address = SocketAddress::numeric(each.own_address, 0);
    if (is_remote(each) && address && !address->is_loopback()) ++uses[each.own_address];
  }
  if (!uses.empty()) return std::ranges::max_element(uses, {}, [](auto const& use) { return use.second; })->first;
  if (!options.interface.empty()) return addresses_of_interface(options.interface).front().address.ip();
  return ConnectionInfo().own_address;
}

#if HEADWAY_HAS_VERBS
using RdmaAddress = verbs::Address;

/// The address for RDMA, if there is one.
/// @throws SystemError if the options name a device that is missing.
/// @throws UsageError if transport verbs is to use an interface that no RDMA device has.
std::optional<RdmaAddress> find_rdma_address(GroupOptions const& options,
                                             std::vector<ControlSocket> const& control_sockets) {
  bool const may_be_missing = options.transport == Transport::kAuto && options.rdma_device.empty();
  auto addresses = verbs::find_addresses();
  if (options.rdma_device.empty() && !options.interface.empty()) {
    auto const of_interface = addresses_of_interface(options.interface);
    std::erase_if(addresses, [&](auto const& each) { return !each.is_of(of_interface); });
    expects(may_be_missing || !addresses.empty(), "transport verbs: no RDMA device has an address of interface '" +
                                                      options.interface + "'; give rdma_device");
  }
  if (may_be_missing && addresses.empty()) return std::nullopt;
  return verbs::choose_address(options.rdma_device, control_sockets, std::move(addresses));
}
#else
/// Stands for verbs::Address in builds without verbs.
struct RdmaAddress {
  [[nodiscard]] static RdmaReach reach() { return {}; }
};

std::optional<RdmaAddress> find_rdma_address(GroupOptions const& options, std::vector<ControlSocket> const&) {
  expects(options.transport != Transport::kVerbs && options.rdma_device.empty(),
          "this build has no transport verbs: the headers of libibverbs were not there");
  return std::nullopt;
}
#endif

/// Chooses how to reach each peer: shm on this host; otherwise verbs if both RDMA devices reach each other, else tcp.
/// With Transport::kTcp no peer counts as one of this host: the bootstrap then opens no local sockets, and `same_host`
/// is false.
std::vector<Route> choose_routes(int rank, std::vector<ControlSocket> const& control_sockets, Transport transport,
                                 std::optional<RdmaAddress> const& rdma, SetupPatience const& patience) {
  std::vector<Route> routes(control_sockets.size(), transport == Transport::kVerbs ? Route::kVerbs : Route::kTcp);
  routes[static_cast<std::size_t>(rank)] = Route::kSelf;
  if (transport == Transport::kVerbs) return routes;
  RdmaReach const own = rdma ? rdma->reach() : RdmaReach();
  auto const reaches = transport == Transport::kAuto ? exchange_rdma_reach(control_sockets, own, patience)
                                                     : std::vector<RdmaReach>(control_sockets.size());
  for (std::size_t peer = 0; peer < routes.size(); ++peer) {
    if (routes[peer] == Route::kSelf) continue;
    if (control_sockets[peer].same_host) {
      routes[peer] = Route::kShm;
    } else if (own.reaches(reaches[peer])) {
      routes[peer] = Route::kVerbs;
    }
  }
  return routes;
}

/// Makes a transport. It receives into `receive_buffer` or, if that is empty, into memory of its own.
std::unique_ptr<Endpoint> make_transport(Route route, int rank, int size, std::vector<ControlSocket> control_sockets,
                                         ReceiveLayout const& layout, std::span<std::byte> receive_buffer,
                                         [[maybe_unused]] std::optional<RdmaAddress> const& rdma,
                                         [[maybe_unused]] GroupOptions const& options, SetupPatience const& patience) {
  std::size_t const receive_buffer_bytes = layout.total_bytes();
  if (route == Route::kShm) {
    ShmSettings const settings{.receive_buffer_bytes = receive_buffer_bytes,
                               .part_bytes = layout.source_stride(),  // A rank writes only its part of a buffer.
                               .allow_get = options.allow_get,
                               .patience = patience};
    return make_shm_endpoint(rank, size, std::move(control_sockets), settings);
  }
#if HEADWAY_HAS_VERBS
  if (route == Route::kVerbs) {
    verbs::Settings settings{.address = *rdma,
                             .num_rails = options.rdma_rails,  // Queue pairs to each peer.
                             .cache_bytes = options.rdma_cache_bytes,
                             .patience = patience};
    if (receive_buffer.empty()) {
      return make_verbs_endpoint(rank, size, std::move(control_sockets), receive_buffer_bytes, std::move(settings));
    }
    return std::make_unique<VerbsEndpoint>(rank, size, std::move(control_sockets), receive_buffer, std::move(settings));
  }
#endif
  if (receive_buffer.empty()) return make_tcp_endpoint(rank, size, std::move(control_sockets), receive_buffer_bytes);
  return std::make_unique<TcpEndpoint>(rank, size, std::move(control_sockets), receive_buffer);
}

/// A connected rank, before its group is made.
struct Connected {
  std::unique_ptr<Endpoint> endpoint;
  ConnectionInfo connection_info;
  std::shared_ptr<ProgressThread> progress_thread;
};

/// Waits until all ranks have made their transports. `sockets`: descriptors of the control sockets by rank, or -1. The
/// transports own them, and do not use them before this call returns.
/// @throws PeerGoneError if a peer closed its connections, as a rank that fails does.
void await_transports_of_peers(std::vector<int> const& sockets, SetupPatience const& patience) {
  std::array<std::byte, 1> ready{std::byte{1}};
  for (std::size_t peer = 0; peer < sockets.size(); ++peer) {
    if (sockets[peer] >= 0) send_all(sockets[peer], ready, static_cast<int>(peer), patience);
  }
  for (std::size_t peer = 0; peer < sockets.size(); ++peer) {
    if (sockets[peer] >= 0) receive_all(sockets[peer], ready, static_cast<int>(peer), patience);
  }
}

std::unique_ptr<Endpoint> make_transports(int rank, int size, ReceiveLayout const& layout,
                                          std::vector<ControlSocket> control_sockets, GroupOptions const& options,
                                          SetupPatience const& patience) {
  bool const may_use_rdma = options.transport == Transport::kVerbs ||
                            (options.transport == Transport::kAuto && std::ranges::any_of(control_sockets, is_remote));
  auto const rdma = may_use_rdma ? find_rdma_address(options, control_sockets) : std::nullopt;
  auto const routes = choose_routes(rank, control_sockets, options.transport, rdma, patience);
  std::vector<int> sockets;
  for (auto const& each : control_sockets) sockets.push_back(each.fd.get());

  std::vector<std::unique_ptr<Endpoint>> transports;
  std::vector<std::size_t> transport_of_peer(routes.size());
  for (Route const route : kTransportRoutes) {
    if (std::ranges::find(routes, route) == routes.end()) continue;
    auto const receive_buffer = transports.empty() ? std::span<std::byte>() : transports.front()->receive_buffer();
    transports.push_back(make_transport(route, rank, size, take(control_sockets, routes, route), layout, receive_buffer,
                                        rdma, options, patience));
    for (std::size_t peer = 0; peer < routes.size(); ++peer) {
      if (routes[peer] == route) transport_of_peer[peer] = transports.size() - 1;
    }
  }
  await_transports_of_peers(sockets, patience);
  if (transports.size() == 1) return std::move(transports.front());
  return std::make_unique<CompositeEndpoint>(std::move(transports), std::move(transport_of_peer));
}

Connected connect_processes(int rank, int size, ReceiveLayout const& layout, Store& store,
                            GroupOptions const& options) {
  // The settings that the handshake compares between ranks.
  Agreement const agreement{.size = size, .receive_buffer_bytes = layout.total_bytes(), .options = &options};
  SetupPatience const patience{.deadline = Clock::now() + options.connect_timeout,
                               .while_waiting = options.while_connecting};
  BootstrapResult result = run_bootstrap(rank, agreement, store, patience.deadline);
  auto& control_sockets = result.control_sockets;
  std::string const& generation = result.generation;  // Names this attempt to connect in the store.
  Connected connected{.endpoint = nullptr, .connection_info = {.generation = generation}, .progress_thread = nullptr};
  for (auto const& each : control_sockets) connected.connection_info.addresses.push_back(each.address);
  auto const fail = [&](std::string const& text) {
    post_setup_failure(rank, options, store, generation, text);
    return SystemError(could_not_connect(rank, options) + text);
  };
  try {
    connected.connection_info.own_address = choose_own_address(control_sockets, options);
    connected.progress_thread = ProgressThread::shared();
    connected.endpoint = make_transports(rank, size, layout, std::move(control_sockets), options, patience);
  } catch (PeerGoneError const& error) {
    auto const cause = find_setup_failure(rank, options, store, generation);
    if (!cause) throw fail(error.what());
    throw SystemError(could_not_connect(rank, options) + *cause);
  } catch (SystemError const& error) {
    throw fail(error.what());
  } catch (UsageError const& error) {
    static_cast<void>(fail(error.what()));
    throw;
  } catch (std::bad_alloc const&) {
    static_cast<void>(fail("it has no memory left"));
    throw;
  } catch (std::system_error const& error) {  // No thread can be started.
    static_cast<void>(fail(error.what()));
    throw;
  } catch (...) {  // An exception of options.while_connecting.
    static_cast<void>(fail("its caller gave up connecting"));
    throw;
  }
  return connected;
}

Connected connect_in_process(int rank, int size, std::size_t receive_buffer_bytes, Store& store,
                             GroupOptions const& options) {
  auto [endpoint, generation] =
      connect_inproc_endpoint(rank, size, receive_buffer_bytes, store, options.name, options.connect_timeout);
  return {.endpoint = std::move(endpoint),
          .connection_info = {.generation = std::move(generation)},
          .progress_thread = size > 1 ? ProgressThread::shared() : nullptr};
}

}  // namespace

std::unique_ptr<Group> Group::connect(int rank, int size, Store& store, GroupOptions options) {
  base::check_log_variable();
  check_options(rank, size, options);
  auto const layout = ReceiveLayout::of(size, options);
  bool const in_process = options.transport == Transport::kInproc || size == 1;
  auto [endpoint, connection_info, progress_thread] =
      in_process ? connect_in_process(rank, size, layout.total_bytes(), store, options)
                 : connect_processes(rank, size, layout, store, options);
  base::log(base::LogLevel::kInfo, "group", rank, "connected " + describe_connection(*endpoint, options.name));
  // For tests: verify the transport contract and, with a fault_seed, delay, repeat and reorder notifications.
  if (options.wrap_checked) endpoint = std::make_unique<CheckedEndpoint>(std::move(endpoint), options.fault_seed);
  return std::make_unique<GroupImpl>(std::move(endpoint), std::move(options), layout, std::move(progress_thread),
                                     std::move(connection_info));
}

}  // namespace headway::comm
