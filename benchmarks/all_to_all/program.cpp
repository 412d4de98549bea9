#include "program.hpp"

#include "core_binding.hpp"
#include "forked_ranks.hpp"
#include "measurements.hpp"
#include "temporary_directory.hpp"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <exception>
#include <filesystem>
#include <iostream>

namespace headway::benchmarks {

namespace {

constexpr int kUsageStatus = 2;

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

int run_rank(Settings const& settings, RankIdentity identity, std::filesystem::path const& store,
             std::string const& system, RankContext::Connect const& connect) try {
  // A rank does not outlive what started it. One that hangs inside the system under test is ended by the alarm, one
  // that waits for it by the meeting.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::alarm(static_cast<unsigned>(settings.time_limit.count()) + 5);
  if (settings.bind) bind_to_core(identity.rank);
  Meeting meeting(store / "meeting", identity.rank, identity.ranks, settings.time_limit);
  try {
    measure({.settings = settings,
             .identity = identity,
             .store = store,
             .system = system,
             .connect = connect,
             .meeting = meeting});
    return 0;
  } catch (...) {
    meeting.fail();
    throw;
  }
} catch (SettingsError const&) {
  throw;
} catch (std::exception const& error) {
  std::cerr << "rank " << identity.rank << ": " << error.what() << std::endl;
  return 1;
}

int run_here(Settings const& settings, std::string const& system, RankContext::Connect const& connect) {
  if (settings.ranks == 0) throw SettingsError("--ranks is needed");
  if (!settings.store.empty()) throw SettingsError("--store is for ranks that another program starts");
  TemporaryDirectory const store;
  return run_forked_ranks(settings.ranks, [&](int rank) {
    return run_rank(settings, {.rank = rank, .ranks = settings.ranks}, store.path(), system, connect);
  });
}

int run(Settings const& settings, std::string const& system, Launch launch, RankContext::Connect const& connect) {
  auto const identity = find_rank_identity(settings);
  if (!identity) {
    if (launch == Launch::kOutside) throw SettingsError("start it with mpirun");
    return run_here(settings, system, connect);
  }
  if (settings.store.empty()) throw SettingsError("--store is needed where another program starts the ranks");
  std::filesystem::create_directories(settings.store);
  return run_rank(settings, *identity, settings.store, system, connect);
}

}  // namespace

int run_program(int argc, char** argv, std::string const& system, Launch launch, RankContext::Connect const& connect) {
  std::string const name = std::filesystem::path(argv[0]).filename();
  try {
    auto const settings = parse_settings(argc, argv);
    if (settings.help) {
      std::cout << usage(name);
      return 0;
    }
    return run(settings, system, launch, connect);
  } catch (SettingsError const& error) {
    std::cerr << name << ": " << error.what() << std::endl;
    return kUsageStatus;
  } catch (std::exception const& error) {
    std::cerr << name << ": " << error.what() << std::endl;
    return 1;
  }
}

}  // namespace headway::benchmarks
