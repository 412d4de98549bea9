#include "engines/checked/endpoint.hpp"
#include "engines/composite/endpoint.hpp"
#include "engines/inproc/endpoint.hpp"
#include "engines/shm/endpoint.hpp"
#include "engines/tcp/endpoint.hpp"
#if HEADWAY_HAS_VERBS
#include "engines/verbs/endpoint.hpp"
#endif
#include "group_impl.hpp"
#include "rendezvous/lifeline.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace headway::comm {

namespace {

void check(int rank, int size, GroupOptions& options) {
  expects(size >= 1 && rank >= 0 && rank < size,
          "rank " + std::to_string(rank) + " is not in a group of " + std::to_string(size));
  expects(options.max_lag >= 0, "max_lag must be 0 or more, not " + std::to_string(options.max_lag));
  if (options.max_lag_limit < 0) options.max_lag_limit = options.max_lag;
  expects(options.max_lag <= options.max_lag_limit, "max_lag is above max_lag_limit");
  expects(options.max_lag_limit <= 1024, "max_lag_limit must be at most 1024");
  expects(options.num_channels >= 1 && options.num_channels <= kMaxRings, "num_channels must be 1 to 64");
  expects(options.slot_bytes >= 64, "slot_bytes must be at least 64");
}

std::unique_ptr<Endpoint> connect_verbs(int rank, int size, std::size_t landing_bytes,
                                        std::vector<Lifeline> const& lifelines, GroupOptions const& options) {
#if HEADWAY_HAS_VERBS
  return make_verbs_endpoint(rank, size, lifelines, landing_bytes, options.rdma_device);
#else
  for (auto const& lifeline : lifelines) FileDescriptor(lifeline.fd).reset();
  throw UsageError("this build has no engine verbs: the headers of libibverbs were not there");
#endif
}

/// The endpoint for all peers: shm for those on this host, tcp for the rest, both where there are both.
std::unique_ptr<Endpoint> connect_processes(int rank, int size, std::size_t landing_bytes, Store& store,
                                            GroupOptions const& options) {
  Agreement const agreement{.size = size, .landing_bytes = landing_bytes, .options = &options};
  auto lifelines = connect_lifelines(rank, agreement, store, Clock::now() + options.connect_timeout);
  if (options.engine == Engine::kVerbs) return connect_verbs(rank, size, landing_bytes, lifelines, options);
  std::vector<bool> same_host;
  for (auto const& lifeline : lifelines) same_host.push_back(lifeline.same_host);
  same_host[static_cast<std::size_t>(rank)] = false;
  auto const num_same_host = std::count(same_host.begin(), same_host.end(), true);
  if (num_same_host == size - 1) return make_shm_endpoint(rank, size, std::move(lifelines), landing_bytes);
  if (num_same_host == 0) return make_tcp_endpoint(rank, size, lifelines, landing_bytes);
  auto remote = lifelines;
  for (std::size_t peer = 0; peer < lifelines.size(); ++peer) {
    (same_host[peer] ? remote : lifelines)[peer].fd = -1;
  }
  auto local = make_shm_endpoint(rank, size, std::move(lifelines), landing_bytes);
  auto over_tcp = std::make_unique<TcpEndpoint>(rank, size, std::move(remote), local->landing());
  return std::make_unique<CompositeEndpoint>(std::move(local), std::move(over_tcp), std::move(same_host));
}

}  // namespace

std::unique_ptr<Group> Group::connect(int rank, int size, Store& store, GroupOptions options) {
  check(rank, size, options);
  auto const layout = LandingLayout::of(size, options);
  bool const in_process = options.engine == Engine::kInproc || size == 1;
  auto endpoint = in_process ? connect_inproc_endpoint(rank, size, layout.total_bytes(), store, options.name,
                                                       options.connect_timeout)
                             : connect_processes(rank, size, layout.total_bytes(), store, options);
  if (options.wrap_checked) endpoint = std::make_unique<CheckedEndpoint>(std::move(endpoint), options.fault_seed);
  return std::make_unique<GroupImpl>(std::move(endpoint), std::move(options), layout,
                                     size > 1 ? ProgressThread::shared() : nullptr);
}

}  // namespace headway::comm
