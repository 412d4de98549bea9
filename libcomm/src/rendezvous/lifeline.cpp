#include "rendezvous/lifeline.hpp"

#include "open_files.hpp"
#include "rendezvous/agreement.hpp"
#include "rendezvous/connector.hpp"
#include "rendezvous/contact.hpp"
#include "rendezvous/meeting.hpp"
#include "rendezvous/noticeboard.hpp"
#include "rendezvous/random.hpp"
#include "rendezvous/sockets.hpp"

#include <algorithm>
#include <optional>

namespace headway::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// Descriptors besides one for each peer: listeners, events, the store's.
constexpr std::size_t kFilesToMeet = 8;

// A rank of the group turned this one away for its secret. The others may do without this process, so they are not
// told.
class RefusedError : public SystemError {
 public:
  using SystemError::SystemError;
};

struct Reachability {
  Contact contact;
  std::vector<Meeting::Listener> listeners;
};

// The highest rank accepts no one and needs no listener.
Reachability become_reachable(HandshakeSelf const& self, GroupOptions const& options) {
  Reachability result;
  result.contact.instance = self.instance;
  // Who asks for shared memory gets it wherever there is some, also between ranks that act as if there were none.
  result.contact.host = options.engine == Engine::kShm ? physical_host_identity() : host_identity();
  if (self.rank == self.size - 1) return result;
  if (options.engine != Engine::kTcp) {
    result.contact.local_name = "headway-" + to_hex(self.instance);
    result.listeners.push_back({listen_on(SocketAddress::local(result.contact.local_name)), true});
  }
  if (options.engine != Engine::kShm) {
    auto tcp = listen_tcp(options.interface_address);
    result.contact.addresses = std::move(tcp.reachable_at);
    result.listeners.push_back({std::move(tcp.socket), false});
  }
  return result;
}

/// Connects with the lower ranks, each as soon as it can be reached.
class LowerRanks {
 public:
  LowerRanks(HandshakeSelf const& self, std::string const& host, Engine engine, Noticeboard& board, Meeting& meeting,
             Deadline deadline)
      : self_(self), host_(host), engine_(engine), board_(board), meeting_(meeting), deadline_(deadline) {}

  /// @returns once all are connected, the meeting ended or the deadline passed.
  void connect() {
    std::vector<Target> targets;
    for (int peer = self_.rank - 1; peer >= 0; --peer) {
      targets.push_back({peer, std::nullopt});
      meeting_.note(peer, "it did not publish where it can be reached");
    }
    auto next_look = Clock::now() + seconds(1);
    for (milliseconds patience(5); !over(); patience = std::min<milliseconds>(2 * patience, seconds(1))) {
      std::erase_if(targets, [&](Target& target) { return !over() && try_target(target, patience); });
      if (targets.empty()) return;
      if (Clock::now() >= next_look) {
        if (auto failure = board_.find_failure()) throw RendezvousError(std::move(*failure));
        next_look = Clock::now() + seconds(1);
      }
      static_cast<void>(meeting_.wait_until(Clock::now() + std::min(patience, milliseconds(100))));
    }
  }

 private:
  struct Target {
    int peer;
    std::optional<Contact> contact;
  };

  bool try_target(Target& target, milliseconds patience) {
    if (!target.contact) {
      auto const text = board_.find_contact(target.peer, std::min(deadline_, Clock::now() + patience));
      if (!text) return false;
      target.contact = decode_contact(*text, target.peer);
      if (engine_ == Engine::kShm) expect_same_host(target.peer, *target.contact);
    }
    if (try_addresses(target.peer, *target.contact, candidate_addresses(*target.contact, host_, engine_))) return true;
    target.contact.reset();  // It may be that of a process that went before; the store may hold a newer one by now.
    return false;
  }

  void expect_same_host(int peer, Contact const& contact) const {
    if (contact.host == host_ || contact.host.empty() || host_.empty()) return;
    throw SystemError("engine shm needs all ranks on one host: rank " + std::to_string(self_.rank) + " is on " + host_ +
                      " and rank " + std::to_string(peer) + " on " + contact.host + " (boot id/network namespace)");
  }

  bool try_addresses(int peer, Contact const& contact, std::vector<SocketAddress> const& addresses) {
    std::string why = addresses.empty() ? "it can be reached under no address" : "";
    for (auto const& address : addresses) {
      auto const limit = std::min(deadline_, Clock::now() + seconds(5));
      auto attempt = try_to_connect(address, self_, peer, contact, limit, meeting_.ended_fd());
      if (attempt.outcome == Attempt::Outcome::kConnected) {
        meeting_.add({.peer = peer,
                      .instance = contact.instance,
                      .socket = std::move(attempt.socket),
                      .local = address.is_local()});
        return true;
      }
      if (attempt.outcome == Attempt::Outcome::kRefused) throw RefusedError(attempt.error);
      if (attempt.outcome == Attempt::Outcome::kDisagreement) throw SystemError(attempt.error);
      why += (why.empty() ? "" : ", ") + address.to_string() + ": " + attempt.error;
      // The same host must not be reached by tcp only because its local socket is busy.
      if (address.is_local() && attempt.outcome == Attempt::Outcome::kAgain) break;
    }
    meeting_.note(peer, why);
    return false;
  }

  bool over() { return Clock::now() >= deadline_ || meeting_.wait_until(Clock::now()); }

  HandshakeSelf const& self_;
  std::string const& host_;
  Engine engine_;
  Noticeboard& board_;
  Meeting& meeting_;
  Deadline deadline_;
};

// A rank may fail before it is connected with this one; then the store is the only place that tells.
void await_end(Meeting& meeting, Noticeboard& board) {
  auto pause = seconds(2);
  while (!meeting.wait_until(Clock::now() + pause)) {
    if (auto failure = board.find_failure()) meeting.fail(std::move(*failure));
    pause = seconds(1);
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

std::vector<Lifeline> meet(HandshakeSelf const& self, GroupOptions const& options, Noticeboard& board,
                           Deadline deadline) {
  auto [contact, listeners] = become_reachable(self, options);
  Meeting meeting(self, std::move(listeners), deadline);
  try {
    board.post_contact(self.rank, encode_contact(contact));
    LowerRanks(self, contact.host, options.engine, board, meeting, deadline).connect();
    await_end(meeting, board);
  } catch (RendezvousError const& error) {
    meeting.fail(error.failure());
    throw;
  } catch (std::exception const& error) {
    meeting.fail({.origin = self.rank, .text = error.what()});
    throw;
  }
  if (auto failure = meeting.failure()) throw RendezvousError(std::move(*failure));
  return meeting.take_lifelines();
}

}  // namespace

std::vector<Lifeline> connect_lifelines(int rank, Agreement const& agreement, Store& store, Deadline deadline) {
  check_arguments(rank, agreement);
  if (agreement.size == 1) return std::vector<Lifeline>(1);
  GroupOptions const& options = *agreement.options;
  Noticeboard board(store, options.name);
  std::string const group = options.name.empty() ? "" : " of group '" + options.name + "'";
  std::string const prefix = "rank " + std::to_string(rank) + group + " could not connect: ";
  try {
    // Running out in the middle would look like peers that do not answer.
    expect_free_files(static_cast<std::size_t>(agreement.size - 1) + kFilesToMeet, agreement.size);
    HandshakeSelf const self{.rank = rank,
                             .size = agreement.size,
                             .instance = random_bytes<InstanceId().size()>(),
                             .secret = board.agree_on_secret(rank, options.secret, deadline),
                             .fields = fields_of(agreement)};
    return meet(self, options, board, deadline);
  } catch (RefusedError const& error) {
    throw SystemError(prefix + error.what());
  } catch (RendezvousError const& error) {
    if (error.failure().origin == rank) board.post_failure(error.failure());
    throw SystemError(prefix + error.failure().seen_by(rank));
  } catch (UsageError const& error) {
    board.post_failure({.origin = rank, .text = error.what()});
    throw;
  } catch (SystemError const& error) {
    board.post_failure({.origin = rank, .text = error.what()});
    throw SystemError(prefix + error.what());
  }
}

}  // namespace headway::comm
