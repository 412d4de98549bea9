#include "bare_end.hpp"
#include "core_binding.hpp"
#include "forked_ranks.hpp"
#include "headway_end.hpp"
#include "measure_put.hpp"
#include "meeting.hpp"
#include "put_settings.hpp"
#include "settings.hpp"
#include "temporary_directory.hpp"

#include <headway/comm/store.hpp>

#include <unistd.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

namespace headway::benchmarks {

namespace {

constexpr int kRanks = 2, kUsageStatus = 2;

std::string text(BareAddress const& address) {
  return address.device + ":" + std::to_string(address.port) + ":" + std::to_string(address.gid_index);
}

void run_rank(PutSettings const& settings, int rank, std::filesystem::path const& folder) {
  // Ends a rank that hangs inside a system under test.
  ::alarm(static_cast<unsigned>(settings.time_limit.count()) + 5);
  if (settings.bind) bind_to_core(rank);
  Meeting meeting(folder / "meeting", rank, kRanks, settings.time_limit);
  try {
    comm::FileStore store(folder / "store");
    std::size_t const max_bytes = std::max(*std::ranges::max_element(settings.sizes), sizeof(std::uint64_t));
    HeadwayEnd headway(rank, settings.device, max_bytes, store);
    BareEnd bare(rank, headway.address(), max_bytes, store);
    meeting.meet();
    std::vector<NamedEnd> systems{{"headway", headway}, {"libibverbs", bare}};
    measure_put(settings, rank, text(headway.address()), systems, meeting);
    meeting.meet();
  } catch (...) {
    meeting.fail();
    throw;
  }
}

int run_rank_or_report(PutSettings const& settings, int rank, std::filesystem::path const& folder) {
  try {
    run_rank(settings, rank, folder);
    return 0;
  } catch (std::exception const& error) {
    std::cerr << "rank " << rank << ": " << error.what() << std::endl;
    return 1;
  }
}

}  // namespace

}  // namespace headway::benchmarks

int main(int argc, char** argv) {
  using namespace headway::benchmarks;
  std::string const name = std::filesystem::path(argv[0]).filename();
  try {
    auto const settings = parse_put_settings(argc, argv);
    if (settings.help) {
      std::cout << put_usage(name);
      return 0;
    }
    TemporaryDirectory const folder;
    return run_forked_ranks(kRanks, [&](int rank) { return run_rank_or_report(settings, rank, folder.path()); });
  } catch (SettingsError const& error) {
    std::cerr << name << ": " << error.what() << std::endl;
    return kUsageStatus;
  } catch (std::exception const& error) {
    std::cerr << name << ": " << error.what() << std::endl;
    return 1;
  }
}
