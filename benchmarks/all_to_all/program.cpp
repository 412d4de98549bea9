// SPDX-License-Identifier: Apache-2.0

// Runs a measurement on all ranks: this process is one rank of a launcher, or forks all ranks itself.

#include "program.hpp"

#include "forked_ranks.hpp"
#include "measurements.hpp"
#include "rank_program.hpp"

#include <filesystem>

namespace headway::benchmarks {

namespace {

void measure(RankContext const& context) {
  switch (context.settings.mode) {
    case Mode::kCalls:
      return measure_calls(context);
    case Mode::kSequence:
      return measure_sequence(context);
    case Mode::kLagCost:
      return measure_lag_cost(context);
    case Mode::kIdle:
      return measure_idle(context);
    case Mode::kMemory:
      return measure_memory(context);
    case Mode::kCopy:
      return measure_copy(context);
  }
}

int measure_as(Settings const& settings, RankIdentity identity, std::filesystem::path const& store,
               System const& system) {
  if (settings.registered && !system.allocate_registered) {
    throw SettingsError("--registered: " + system.name + " has no memory of its own for blocks");
  }
  return run_rank(settings, identity, store, [&](RankBarrier& barrier) {
    measure({.settings = settings,
             .identity = identity,
             .store = store,
             .system = system.name,
             .connect = system.connect,
             .allocate = settings.registered ? system.allocate_registered : allocate_plain,
             .barrier = barrier});
  });
}

int run_here(Settings const& settings, System const& system) {
  if (settings.ranks == 0) throw SettingsError("--ranks is needed");
  if (!settings.store.empty()) throw SettingsError("--store is for ranks that another program starts");
  TemporaryDirectory const store;
  return run_forked_ranks(settings.ranks, [&](int rank) {
    return measure_as(settings, {.rank = rank, .ranks = settings.ranks}, store.path(), system);
  });
}

int run(Settings const& settings, System const& system) {
  auto const identity = find_rank_identity(settings);
  if (!identity) {
    if (system.launch == Launch::kOutside) throw SettingsError("start it with mpirun");
    return run_here(settings, system);
  }
  if (settings.store.empty()) throw SettingsError("--store is needed where another program starts the ranks");
  std::filesystem::create_directories(settings.store);
  return measure_as(settings, *identity, settings.store, system);
}

}  // namespace

int run_program(int argc, char** argv, System const& system) {
  return run_main(argc, argv, usage, [&](Arguments arguments) { return run(parse_settings(arguments), system); });
}

}  // namespace headway::benchmarks
