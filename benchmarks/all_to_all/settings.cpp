// SPDX-License-Identifier: Apache-2.0
#include "settings.hpp"

#include <cstdlib>
#include <string>
#include <utility>

namespace headway::benchmarks {

Settings parse_settings(Arguments arguments) {
  constexpr std::size_t kMaxBytes = std::size_t{1} << 36;
  constexpr std::size_t kMaxCalls = 100'000'000;
  constexpr int kMaxRanks = 256;
  constexpr int kMaxLag = 64;
  Settings settings;
  Setter const set_split =
      choice(settings.split, {{"even", Split::kEven}, {"zipf", Split::kZipf}, {"incast", Split::kIncast}});
  Options const options{
      {"--mode", choice(settings.mode, {{"calls", Mode::kCalls},
                                        {"sequence", Mode::kSequence},
                                        {"lag_cost", Mode::kLagCost},
                                        {"idle", Mode::kIdle},
                                        {"memory", Mode::kMemory},
                                        {"copy", Mode::kCopy}})},
      {"--ranks", number(settings.ranks, 1, kMaxRanks)},
      {"--rank", number(settings.rank, 0, kMaxRanks - 1)},
      {"--store", [&](auto, auto text) { settings.store = text; }},
      {"--sizes", numbers(settings.sizes, 0, kMaxBytes)},
      {"--repetitions", number(settings.repetitions, std::size_t{1}, kMaxCalls)},
      {"--split",
       [&](auto option, auto text) {
         set_split(option, text);
         settings.split_name = text;
       }},
      {"--lag", number(settings.lag, 0, kMaxLag)},
      {"--lags", numbers(settings.lags, 0, kMaxLag)},
      {"--counts", numbers(settings.counts, 1, kMaxCalls)},
      {"--slot-bytes", number(settings.slot_bytes, std::size_t{64}, kMaxBytes)},
      {"--get-bytes", number(settings.get_bytes, std::size_t{0}, kMaxBytes)},
      {"--transport",
       choice(settings.transport, {{"auto", "auto"}, {"shm", "shm"}, {"tcp", "tcp"}, {"verbs", "verbs"}})},
      {"--registered", &settings.registered},
      {"--bind", &settings.bind},
      {"--time-limit", number(settings.time_limit, 1, 86'400)},
      {"--idle", number(settings.idle_s, 0.01, 3600.0)},
  };
  parse_options(arguments, options);
  return settings;
}

std::string usage(std::string const& program) {
  return "Times all-to-alls and prints one JSON line a point; every result is checked before and after.\n\n"
         "usage: " +
         program +
         " [options]\n"
         "  --mode M          calls (default), sequence, lag_cost, idle, memory or copy\n"
         "  --sizes B,...     bytes per rank, the total over all destinations (32768)\n"
         "  --repetitions N   timed calls of a point (by size)\n"
         "  --split S         even (default), zipf or incast (zipf with one hot rank)\n"
         "  --lag K           calls in flight less one (0)\n"
         "  --lags K,...      bounds that lag_cost compares (0,1,2,3,4)\n"
         "  --counts N,...    calls in a row for sequence (1,10,...,100000)\n"
         "  --idle S          seconds that idle lasts (2)\n"
         "  --bind            pin rank i to the i-th core\n"
         "  --time-limit S    end after this time (300)\n"
         "Headway alone:\n"
         "  --ranks N         processes to start\n"
         "  --slot-bytes B, --get-bytes B, --transport auto|shm|tcp|verbs   as in GroupOptions\n"
         "  --registered      blocks lie in memory of headway::comm::allocate()\n"
         "Ranks started by another program:\n"
         "  --store DIR       empty directory that all ranks share; rank and size come from mpirun,\n"
         "  --rank R          or from this and --ranks\n";
}

std::optional<RankIdentity> find_rank_identity(Settings const& settings) {
  if (settings.rank) {
    if (*settings.rank >= settings.ranks) {
      throw SettingsError("--rank " + std::to_string(*settings.rank) + " needs a larger --ranks");
    }
    return RankIdentity{.rank = *settings.rank, .ranks = settings.ranks};
  }
  constexpr std::pair<char const*, char const*> kLaunchers[] = {
      {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}, {"PMI_RANK", "PMI_SIZE"}, {"SLURM_PROCID", "SLURM_NTASKS"}};
  for (auto const& [rank_name, size_name] : kLaunchers) {
    char const* const rank = std::getenv(rank_name);
    char const* const size = std::getenv(size_name);
    if (rank != nullptr && size != nullptr) return RankIdentity{.rank = std::atoi(rank), .ranks = std::atoi(size)};
  }
  return std::nullopt;
}

}  // namespace headway::benchmarks
