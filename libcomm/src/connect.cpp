// Connecting a group: check the options, connect the ranks, choose a transport per peer, and make the group.

#include "engines/checked/endpoint.hpp"
#include "engines/composite/endpoint.hpp"
#include "engines/inproc/endpoint.hpp"
#include "engines/rdma_reach.hpp"
#include "engines/shm/endpoint.hpp"
#include "engines/tcp/endpoint.hpp"
#if HEADWAY_HAS_VERBS
#include "engines/verbs/device.hpp"
#include "engines/verbs/endpoint.hpp"
#endif
#include "engines/lifeline_messages.hpp"
#include "engines/verbs/limits.hpp"
#include "file_descriptor.hpp"
#include "group_impl.hpp"
#include "rendezvous/lifeline.hpp"
#include "rendezvous/sockets.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>

namespace headway::comm {

namespace {

constexpr std::size_t kMaxFlightRecords = std::size_t{1} << 20;

/// Largest receive memory of a rank: the shm transport counts its 64-byte units in 32 bits.
constexpr std::size_t kMaxReceiveBytes = std::size_t{1} << 38;

/// Refuses options whose receive memory exceeds the limit. The limits of the factors keep their product below 2^64.
void check_receive_memory(int size, GroupOptions const& options) {
  expects(options.slot_bytes <= kMaxReceiveBytes, "slot_bytes must be at most " + std::to_string(kMaxReceiveBytes) +
                                                      ", not " + std::to_string(options.slot_bytes));
  auto const slots = 2 * (static_cast<std::size_t>(options.max_lag_limit) + 1) *
                     static_cast<std::size_t>(options.num_channels) * static_cast<std::size_t>(size);
  expects(
      slots <= kMaxReceiveBytes / options.slot_bytes &&
          LandingLayout::of(size, options).total_bytes() <= kMaxReceiveBytes,
      "slot_bytes " + std::to_string(options.slot_bytes) + " times " + std::to_string(slots) +
          " slots (2 (max_lag_limit + 1) for each of the channels and ranks) exceeds the largest receive memory of " +
          std::to_string(kMaxReceiveBytes) + " bytes: lower slot_bytes, max_lag_limit or num_channels");
}

/// Checks the options and fills in defaults. @throws UsageError.
void check(int rank, int size, GroupOptions& options) {
  expects(size >= 1 && rank >= 0 && rank < size,
          "rank " + std::to_string(rank) + " is not in a group of " + std::to_string(size));
  expects(options.max_lag >= 0, "max_lag must be 0 or more, not " + std::to_string(options.max_lag));
  if (options.max_lag_limit < 0) options.max_lag_limit = options.max_lag;
  expects(options.max_lag <= options.max_lag_limit, "max_lag is above max_lag_limit");
  expects(options.max_lag_limit <= 1024, "max_lag_limit must be at most 1024");
  expects(options.num_channels >= 1 && options.num_channels <= kMaxRings, "num_channels must be 1 to 64");
  expects(options.slot_bytes >= 64, "slot_bytes must be at least 64");
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

/// How a peer is reached. Transports are made in this order; the first one provides the receive memory of all.
enum class Way { kShm, kVerbs, kTcp, kSelf };
constexpr std::array kEngineWays{Way::kShm, Way::kVerbs, Way::kTcp};

/// Moves out the lifelines to the peers reached by `way`; the others stay.
std::vector<Lifeline> take(std::vector<Lifeline>& lifelines, std::vector<Way> const& ways, Way way) {
  std::vector<Lifeline> taken(lifelines.size());
  for (std::size_t peer = 0; peer < lifelines.size(); ++peer) {
    if (ways[peer] == way) taken[peer] = std::move(lifelines[peer]);
  }
  return taken;
}

bool is_remote(Lifeline const& lifeline) { return lifeline.fd.valid() && !lifeline.same_host; }

/// The own address that most peers on other hosts were reached with. Loopback addresses do not count: they serve this
/// host only.
std::string choose_own_address(std::vector<Lifeline> const& lifelines, GroupOptions const& options) {
  std::map<std::string, int> uses;
  for (auto const& each : lifelines) {
    auto const address = SocketAddress::numeric(each.own_address, 0);
    if (is_remote(each) && address && !address->is_loopback()) ++uses[each.own_address];
  }
  if (!uses.empty()) return std::ranges::max_element(uses, {}, [](auto const& use) { return use.second; })->first;
  if (!options.interface.empty()) return addresses_of_interface(options.interface).front().address.ip();
  return Acquainted().own_address;
}

#if HEADWAY_HAS_VERBS
using RdmaAddress = verbs::Address;

/// The address for RDMA, if there is one. @throws SystemError if the options name a device that is missing.
std::optional<RdmaAddress> find_rdma_address(GroupOptions const& options, std::vector<Lifeline> const& lifelines) {
  bool const may_be_missing = options.engine == Engine::kAuto && options.rdma_device.empty();
  auto addresses = verbs::find_addresses();
  if (options.rdma_device.empty() && !options.interface.empty()) {
    auto const of_interface = addresses_of_interface(options.interface);
    std::erase_if(addresses, [&](auto const& each) { return !each.is_of(of_interface); });
    expects(may_be_missing || !addresses.empty(),
            "engine verbs: no RDMA device has an address of interface '" + options.interface + "'; give rdma_device");
  }
  if (may_be_missing && addresses.empty()) return std::nullopt;
  return verbs::choose_address(options.rdma_device, lifelines, std::move(addresses));
}
#else
/// Stands for verbs::Address in builds without verbs.
struct RdmaAddress {
  [[nodiscard]] static RdmaReach reach() { return {}; }
};

std::optional<RdmaAddress> find_rdma_address(GroupOptions const& options, std::vector<Lifeline> const&) {
  expects(options.engine != Engine::kVerbs && options.rdma_device.empty(),
          "this build has no engine verbs: the headers of libibverbs were not there");
  return std::nullopt;
}
#endif

/// Chooses how to reach each peer: shm on this host; otherwise verbs if both RDMA devices reach each other, else tcp.
std::vector<Way> choose_ways(int rank, std::vector<Lifeline> const& lifelines, Engine engine,
                             std::optional<RdmaAddress> const& rdma, SetupPatience const& patience) {
  std::vector<Way> ways(lifelines.size(), engine == Engine::kVerbs ? Way::kVerbs : Way::kTcp);
  ways[static_cast<std::size_t>(rank)] = Way::kSelf;
  if (engine == Engine::kVerbs) return ways;
  RdmaReach const own = rdma ? rdma->reach() : RdmaReach();
  auto const reaches = engine == Engine::kAuto ? exchange_rdma_reach(lifelines, own, patience)
                                               : std::vector<RdmaReach>(lifelines.size());
  for (std::size_t peer = 0; peer < ways.size(); ++peer) {
    if (ways[peer] == Way::kSelf) continue;
    if (lifelines[peer].same_host) ways[peer] = Way::kShm;
    if (own.reaches(reaches[peer])) ways[peer] = Way::kVerbs;
  }
  return ways;
}

/// Makes a transport. It receives into `landing` or, if that is empty, into memory of its own.
std::unique_ptr<Endpoint> make_engine(Way way, int rank, int size, std::vector<Lifeline> lifelines,
                                      LandingLayout const& layout, std::span<std::byte> landing,
                                      [[maybe_unused]] std::optional<RdmaAddress> const& rdma,
                                      [[maybe_unused]] GroupOptions const& options, SetupPatience const& patience) {
  std::size_t const landing_bytes = layout.total_bytes();
  if (way == Way::kShm) {
    ShmSettings const settings{.landing_bytes = landing_bytes,
                               .part_bytes = layout.source_stride(),
                               .allow_get = options.allow_pull,
                               .patience = patience};
    return make_shm_endpoint(rank, size, std::move(lifelines), settings);
  }
#if HEADWAY_HAS_VERBS
  if (way == Way::kVerbs) {
    verbs::Settings settings{.address = *rdma,
                             .num_rails = options.rdma_rails,
                             .cache_bytes = options.rdma_cache_bytes,
                             .patience = patience};
    if (landing.empty()) {
      return make_verbs_endpoint(rank, size, std::move(lifelines), landing_bytes, std::move(settings));
    }
    return std::make_unique<VerbsEndpoint>(rank, size, std::move(lifelines), landing, std::move(settings));
  }
#endif
  if (landing.empty()) return make_tcp_endpoint(rank, size, std::move(lifelines), landing_bytes);
  return std::make_unique<TcpEndpoint>(rank, size, std::move(lifelines), landing);
}

/// A connected rank, before its group is made.
struct Connected {
  std::unique_ptr<Endpoint> endpoint;
  Acquainted acquainted;
  std::shared_ptr<ProgressThread> progress_thread;
};

/// Returns once all ranks have made their transports; a rank that fails closes its connections. `sockets`: those of the
/// lifelines, by rank. The transports own them, and use them only after this call.
void await_engines_of_peers(std::vector<int> const& sockets, SetupPatience const& patience) {
  std::array<std::byte, 1> ready{std::byte{1}};
  for (std::size_t peer = 0; peer < sockets.size(); ++peer) {
    if (sockets[peer] >= 0) send_all(sockets[peer], ready, static_cast<int>(peer), patience);
  }
  for (std::size_t peer = 0; peer < sockets.size(); ++peer) {
    if (sockets[peer] >= 0) receive_all(sockets[peer], ready, static_cast<int>(peer), patience);
  }
}

std::unique_ptr<Endpoint> make_engines(int rank, int size, LandingLayout const& layout, std::vector<Lifeline> lifelines,
                                       GroupOptions const& options, SetupPatience const& patience) {
  bool const may_use_rdma = options.engine == Engine::kVerbs ||
                            (options.engine == Engine::kAuto && std::ranges::any_of(lifelines, is_remote));
  auto const rdma = may_use_rdma ? find_rdma_address(options, lifelines) : std::nullopt;
  auto const ways = choose_ways(rank, lifelines, options.engine, rdma, patience);
  std::vector<int> sockets;
  for (auto const& each : lifelines) sockets.push_back(each.fd.get());

  std::vector<std::unique_ptr<Endpoint>> engines;
  std::vector<std::size_t> engine_of_peer(ways.size());
  for (Way const way : kEngineWays) {
    if (std::ranges::find(ways, way) == ways.end()) continue;
    auto const landing = engines.empty() ? std::span<std::byte>() : engines.front()->landing();
    engines.push_back(
        make_engine(way, rank, size, take(lifelines, ways, way), layout, landing, rdma, options, patience));
    for (std::size_t peer = 0; peer < ways.size(); ++peer) {
      if (ways[peer] == way) engine_of_peer[peer] = engines.size() - 1;
    }
  }
  await_engines_of_peers(sockets, patience);
  if (engines.size() == 1) return std::move(engines.front());
  return std::make_unique<CompositeEndpoint>(std::move(engines), std::move(engine_of_peer));
}

Connected connect_processes(int rank, int size, LandingLayout const& layout, Store& store,
                            GroupOptions const& options) {
  Agreement const agreement{.size = size, .landing_bytes = layout.total_bytes(), .options = &options};
  SetupPatience const patience{.deadline = Clock::now() + options.connect_timeout,
                               .while_waiting = options.while_connecting};
  Introduced introduced = introduce(rank, agreement, store, patience.deadline);
  auto& lifelines = introduced.lifelines;
  std::string const& generation = introduced.generation;
  Connected connected{.endpoint = nullptr, .acquainted = {.generation = generation}, .progress_thread = nullptr};
  for (auto const& each : lifelines) connected.acquainted.addresses.push_back(each.address);
  auto const fail = [&](std::string const& text) {
    post_setup_failure(rank, options, store, generation, text);
    return SystemError(could_not_connect(rank, options) + text);
  };
  try {
    connected.acquainted.own_address = choose_own_address(lifelines, options);
    connected.progress_thread = ProgressThread::shared();
    connected.endpoint = make_engines(rank, size, layout, std::move(lifelines), options, patience);
  } catch (PeerGoneError const& error) {
    auto const cause = find_setup_failure(rank, options, store, generation);
    if (!cause) throw fail(error.what());
    throw SystemError(could_not_connect(rank, options) + *cause);
  } catch (SystemError const& error) {
    throw fail(error.what());
  } catch (UsageError const& error) {
    static_cast<void>(fail(error.what()));
    throw;
  } catch (...) {
    static_cast<void>(fail("its caller gave up connecting"));
    throw;
  }
  return connected;
}

Connected connect_in_process(int rank, int size, std::size_t landing_bytes, Store& store, GroupOptions const& options) {
  auto [endpoint, generation] =
      connect_inproc_endpoint(rank, size, landing_bytes, store, options.name, options.connect_timeout);
  return {.endpoint = std::move(endpoint),
          .acquainted = {.generation = std::move(generation)},
          .progress_thread = size > 1 ? ProgressThread::shared() : nullptr};
}

}  // namespace

std::unique_ptr<Group> Group::connect(int rank, int size, Store& store, GroupOptions options) {
  check(rank, size, options);
  auto const layout = LandingLayout::of(size, options);
  bool const in_process = options.engine == Engine::kInproc || size == 1;
  auto [endpoint, acquainted, progress_thread] =
      in_process ? connect_in_process(rank, size, layout.total_bytes(), store, options)
                 : connect_processes(rank, size, layout, store, options);
  if (options.wrap_checked) endpoint = std::make_unique<CheckedEndpoint>(std::move(endpoint), options.fault_seed);
  return std::make_unique<GroupImpl>(std::move(endpoint), std::move(options), layout, std::move(progress_thread),
                                     std::move(acquainted));
}

}  // namespace headway::comm
