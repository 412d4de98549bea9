#include "engines/rdma_reach.hpp"

#include "engines/lifeline_messages.hpp"

#include <cstddef>
#include <span>

namespace headway::comm {

std::vector<RdmaReach> exchange_rdma_reach(std::vector<Lifeline> const& lifelines, RdmaReach const& own,
                                           SetupPatience const& patience) {
  auto const is_remote = [](Lifeline const& each) { return each.fd.valid() && !each.same_host; };
  for (std::size_t peer = 0; peer < lifelines.size(); ++peer) {
    if (!is_remote(lifelines[peer])) continue;
    send_all(lifelines[peer].fd.get(), std::as_bytes(std::span(&own, 1)), static_cast<int>(peer), patience);
  }
  std::vector<RdmaReach> reaches(lifelines.size());
  for (std::size_t peer = 0; peer < lifelines.size(); ++peer) {
    if (!is_remote(lifelines[peer])) continue;
    receive_all(lifelines[peer].fd.get(), std::as_writable_bytes(std::span(&reaches[peer], 1)), static_cast<int>(peer),
                patience);
  }
  return reaches;
}

}  // namespace headway::comm
