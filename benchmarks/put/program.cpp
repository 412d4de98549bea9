// SPDX-License-Identifier: Apache-2.0

// Compares a put through Headway's RDMA transport with the same write in plain verbs: two forked ranks, one size
// after the other. The difference is what the transport itself costs.

#include "forked_ranks.hpp"
#include "headway_channel.hpp"
#include "measure_put.hpp"
#include "put_settings.hpp"
#include "rank_program.hpp"
#include "verbs_channel.hpp"

#include <headway/comm/store.hpp>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

namespace headway::benchmarks {

namespace {

constexpr int kRanks = 2;

std::string text(VerbsAddress const& address) {
  return address.device + ":" + std::to_string(address.port) + ":" + std::to_string(address.gid_index);
}

void measure(PutSettings const& settings, int rank, std::filesystem::path const& folder, RankBarrier& barrier) {
  comm::FileStore store(folder / "store");
  std::size_t const max_bytes = std::max(*std::ranges::max_element(settings.sizes), sizeof(std::uint64_t));
  HeadwayChannel headway(rank, settings.device, max_bytes, store);
  VerbsChannel verbs(rank, headway.address(), max_bytes, store);
  barrier.wait();
  std::vector<NamedChannel> systems{{"headway", headway}, {"libibverbs", verbs}};
  measure_put(settings, rank, text(headway.address()), systems, barrier);
  barrier.wait();
}

int run(PutSettings const& settings) {
  TemporaryDirectory const folder;
  return run_forked_ranks(kRanks, [&](int rank) {
    return run_rank(settings, {.rank = rank, .ranks = kRanks}, folder.path(),
                    [&](RankBarrier& barrier) { measure(settings, rank, folder.path(), barrier); });
  });
}

}  // namespace

}  // namespace headway::benchmarks

int main(int argc, char** argv) {
  using namespace headway::benchmarks;
  return run_main(argc, argv, put_usage, [](Arguments arguments) { return run(parse_put_settings(arguments)); });
}
