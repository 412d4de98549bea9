#include "bare_end.hpp"
#include "forked_ranks.hpp"
#include "headway_end.hpp"
#include "measure_put.hpp"
#include "put_settings.hpp"
#include "rank_program.hpp"
#include "temporary_directory.hpp"

#include <headway/comm/store.hpp>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

namespace headway::benchmarks {

namespace {

constexpr int kRanks = 2;

std::string text(BareAddress const& address) {
  return address.device + ":" + std::to_string(address.port) + ":" + std::to_string(address.gid_index);
}

void measure(PutSettings const& settings, int rank, std::filesystem::path const& folder, Meeting& meeting) {
  comm::FileStore store(folder / "store");
  std::size_t const max_bytes = std::max(*std::ranges::max_element(settings.sizes), sizeof(std::uint64_t));
  HeadwayEnd headway(rank, settings.device, max_bytes, store);
  BareEnd bare(rank, headway.address(), max_bytes, store);
  meeting.meet();
  std::vector<NamedEnd> systems{{"headway", headway}, {"libibverbs", bare}};
  measure_put(settings, rank, text(headway.address()), systems, meeting);
  meeting.meet();
}

int run(PutSettings const& settings) {
  TemporaryDirectory const folder;
  return run_forked_ranks(kRanks, [&](int rank) {
    return run_rank(settings, {.rank = rank, .ranks = kRanks}, folder.path(),
                    [&](Meeting& meeting) { measure(settings, rank, folder.path(), meeting); });
  });
}

}  // namespace

}  // namespace headway::benchmarks

int main(int argc, char** argv) {
  using namespace headway::benchmarks;
  return run_main(argc, argv, put_usage, [](Arguments arguments) { return run(parse_put_settings(arguments)); });
}
