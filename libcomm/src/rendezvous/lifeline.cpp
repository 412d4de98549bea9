#include "rendezvous/lifeline.hpp"

#include "open_files.hpp"
#include "rendezvous/agreement.hpp"
#include "rendezvous/contact.hpp"
#include "rendezvous/meeting.hpp"
#include "rendezvous/noticeboard.hpp"
#include "rendezvous/random.hpp"
#include "rendezvous/sockets.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace headway::comm {
namespace {

/// Descriptors needed besides one per peer: listeners, epoll, the store's.
constexpr std::size_t kFilesToMeet = 8;

struct Reachability {
  Contact contact;
  std::vector<Meeting::Listener> listeners;
};

// Opens the listeners of this rank. The highest rank accepts no connection and needs none.
Reachability become_reachable(HandshakeSelf const& self, GroupOptions const& options) {
  Reachability result;
  // A rank that only connects binds its sockets to the interface too. A bad interface must be found here, where this
  // rank can still report it.
  if (options.engine != Engine::kShm && !options.interface.empty()) {
    static_cast<void>(addresses_of_interface(options.interface));
  }
  result.contact.instance = self.instance;
  // With engine shm, ranks share memory even if HEADWAY_HOST_ID declares them to be on several hosts.
  result.contact.host = options.engine == Engine::kShm ? physical_host_identity() : host_identity();
  if (self.rank == self.size - 1) return result;
  if (options.engine != Engine::kTcp) {
    result.contact.local_name = "headway-" + to_hex(self.instance);
    result.listeners.push_back({listen_on(SocketAddress::local(result.contact.local_name)), true});
  }
  if (options.engine != Engine::kShm) {
    for (auto& tcp : listen_tcp(options.interface)) {
      std::ranges::copy(tcp.reachable_at, std::back_inserter(result.contact.addresses));
      result.listeners.push_back({std::move(tcp.socket), false});
    }
  }
  return result;
}

Reachability become_reachable_or_tell(HandshakeSelf const& self, GroupOptions const& options, Noticeboard& board,
                                      Deadline deadline) {
  try {
    return become_reachable(self, options);
  } catch (std::exception const& error) {
    GroupOptions anywhere = options;
    anywhere.interface.clear();
    Contact nowhere;
    nowhere.instance = self.instance;
    Meeting(self, nowhere, {}, board, anywhere, deadline)
        .tell_early_failure({.origin = self.rank, .text = error.what()});
    throw;
  }
}

void check_arguments(int rank, Agreement const& agreement) {
  expects(agreement.options != nullptr, "an agreement needs options");
  expects(agreement.size >= 1, "size is " + std::to_string(agreement.size) + "; it must be at least 1");
  expects(rank >= 0 && rank < agreement.size,
          "rank is " + std::to_string(rank) + "; it must be in [0, " + std::to_string(agreement.size) + ")");
  expects(agreement.options->engine != Engine::kInproc, "ranks of engine inproc need no lifelines");
  expects(agreement.options->name.size() <= 4096, "the group's name is longer than 4096 bytes");
}

}  // namespace

std::string draw_generation() { return to_hex(random_bytes<InstanceId().size()>()); }

Introduced introduce(int rank, Agreement const& agreement, Store& store, Deadline deadline) {
  check_arguments(rank, agreement);
  if (agreement.size == 1) return {.lifelines = std::vector<Lifeline>(1), .generation = draw_generation()};
  GroupOptions const& options = *agreement.options;
  HandshakeSelf self{.rank = rank,
                     .size = agreement.size,
                     .instance = random_bytes<InstanceId().size()>(),
                     .secret = options.secret,
                     .fields = fields_of(agreement)};
  std::string const prefix = could_not_connect(rank, options);
  Noticeboard board(store, options.name);
  std::string generation;
  auto const conclude = [&](RendezvousFailure const& failure) {
    if (generation.empty()) return;
    Noticeboard::conclude(generation, rank);
    // Rank 0 also posts failures of others, for ranks that would connect to it later.
    if (failure.origin == rank || rank == 0) board.post_failure(generation, failure);
  };
  try {
    // Running out of descriptors later would look like peers that do not answer.
    expect_free_files(static_cast<std::size_t>(agreement.size - 1) + kFilesToMeet, agreement.size);
    auto [contact, listeners] = become_reachable_or_tell(self, options, board, deadline);
    Meeting meeting(std::move(self), std::move(contact), std::move(listeners), board, options, deadline);
    try {
      auto lifelines = meeting.run();
      return {.lifelines = std::move(lifelines), .generation = meeting.generation()};
    } catch (...) {
      generation = meeting.generation();
      throw;
    }
  } catch (RefusedError const& error) {
    throw SystemError(prefix + error.what());
  } catch (RendezvousError const& error) {
    conclude(error.failure());
    throw SystemError(prefix + error.failure().seen_by(rank));
  } catch (UsageError const& error) {
    conclude({.origin = rank, .text = error.what()});
    throw;
  } catch (SystemError const& error) {
    conclude({.origin = rank, .text = error.what()});
    throw SystemError(prefix + error.what());
  } catch (...) {
    conclude({.origin = rank, .text = "its caller gave up connecting"});
    throw;
  }
}

void post_setup_failure(int rank, GroupOptions const& options, Store& store, std::string const& generation,
                        std::string const& text) noexcept {
  Noticeboard::conclude(generation, rank);
  Noticeboard(store, options.name).post_failure(generation, {.origin = rank, .text = text});
}

std::optional<std::string> find_setup_failure(int rank, GroupOptions const& options, Store& store,
                                              std::string const& generation) {
  Noticeboard board(store, options.name);
  Noticeboard::conclude(generation, rank);
  auto const posted = board.find_failure(generation, Clock::now() + std::chrono::seconds(1));
  return posted ? std::optional(posted->failure.seen_by(rank)) : std::nullopt;
}

std::string could_not_connect(int rank, GroupOptions const& options) {
  std::string const group = options.name.empty() ? "" : " of group '" + options.name + "'";
  return "rank " + std::to_string(rank) + group + " could not connect: ";
}

std::vector<Lifeline> connect_lifelines(int rank, Agreement const& agreement, Store& store, Deadline deadline) {
  auto lifelines = introduce(rank, agreement, store, deadline).lifelines;
  for (auto const& each : lifelines) {
    if (each.fd.valid()) set_blocking(each.fd.get());
  }
  return lifelines;
}

}  // namespace headway::comm
