// Going on after a failure.

#include "errors.hpp"
#include "headway_backend.hpp"
#include "released_gil.hpp"

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <span>
#include <utility>

namespace headway::c10d_backend {

namespace {

/// A store of the group's own, on its rank 0: the one by which the old group was made may have gone with a rank.
c10::intrusive_ptr<c10d::Store> make_store(comm::Group& group) {
  c10d::TCPStoreOptions options;
  options.isServer = group.rank() == 0;
  options.port = 0;
  options.waitWorkers = false;
  c10::intrusive_ptr<c10d::TCPStore> store;
  if (options.isServer) {
    store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
    options.port = store->getPort();
  }
  auto const port_bytes = std::as_writable_bytes(std::span(&options.port, 1));
  auto const operation = group.broadcast(port_bytes, 0, 0);
  comm::Status status = group.wait(*operation);
  if (!status.ok()) throw comm::OperationError(std::move(status));
  if (!options.isServer) store = c10::make_intrusive<c10d::TCPStore>(group.address(0), options);
  return store;
}

}  // namespace

ShrunkBackend HeadwayBackend::shrink_to_survivors(std::vector<int> const& ranks_to_exclude,
                                                  std::chrono::milliseconds timeout) {
  auto const old = handle();
  ShrunkBackend result;
  translate_errors("shrink", [&] {
    auto shrunk = old->group().shrink(ranks_to_exclude, timeout);
    auto options = copy_options();
    options->group_name += "/shrunk";
    std::erase_if(options->global_ranks_in_group,
                  [&, index = 0](auto) mutable { return !std::ranges::binary_search(shrunk.ranks, index++); });
    auto store = make_store(*shrunk.group);
    result = {.backend = c10::make_intrusive<HeadwayBackend>(std::move(store), std::move(shrunk.group),
                                                             std::move(options), make_reducer_),
              .ranks = std::move(shrunk.ranks),
              .all_to_alls = std::move(shrunk.all_to_alls),
              .collectives = shrunk.collectives};
  });
  abort();  // What the reducers of the old group have pending would keep it until its timeout.
  return result;
}

c10::intrusive_ptr<c10d::Backend> HeadwayBackend::shrink(std::vector<std::int64_t> const& ranks_to_exclude,
                                                         int /*shrink_flags*/,
                                                         c10::intrusive_ptr<Options> const& opts_override) {
  TORCH_CHECK_VALUE(!opts_override, "headway: a group that is shrunk keeps its options");
  ReleasedGil const released;
  auto const result =
      shrink_to_survivors({ranks_to_exclude.begin(), ranks_to_exclude.end()}, options_->group.connect_timeout);
  TORCH_CHECK_WITH(DistBackendError,
                   result.ranks.size() + ranks_to_exclude.size() == static_cast<std::size_t>(getSize()),
                   "headway: ", getSize(), " ranks without ", ranks_to_exclude.size(), " should leave more than the ",
                   result.ranks.size(), " that answered; headway.shrink() finds out who is left");
  return result.backend;
}

}  // namespace headway::c10d_backend
