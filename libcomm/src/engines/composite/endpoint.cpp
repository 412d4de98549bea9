// Composite transport: one endpoint made of several, with one of them for each peer.
//
// Idea: a call about one peer goes to the engine that reaches that peer; a call about all peers goes to every engine.
// All engines write to one landing segment, so the layer above addresses a slot in the same way for every peer.
//
// Example: ranks 0 and 1 share a host, rank 2 is remote. Rank 0 has the engines {shm, verbs} and engine_of_peer {0, 0,
// 1}. put() to rank 1 goes to shm, put() to rank 2 to verbs. poll() asks both.
//
// Invariants:
// - The first engine owns the landing memory, so it is destroyed last.
// - Only the composite blocks: sleep() waits on one epoll descriptor that nests those of all engines, then calls each
//   engine's sleep() with a deadline in the past, so that it consumes its own wake-up.
// - submit() starts the last engine first: networks come after shm, and their transfer overlaps with the copies on this
//   host.
// Complexity: one index look-up per put; poll() costs the sum of the engines' polls.
// Source: one transport per pair of ranks, as in NCCL.

#include "engines/composite/endpoint.hpp"

#include "engines/epoll.hpp"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <utility>

namespace headway::comm {
namespace {

constexpr char const* kName = "composite endpoint";

}  // namespace

CompositeEndpoint::CompositeEndpoint(std::vector<std::unique_ptr<Endpoint>> engines,
                                     std::vector<std::size_t> engine_of_peer)
    : engines_(std::move(engines)),
      engine_of_peer_(std::move(engine_of_peer)),
      lifelines_(make_epoll(kName)),
      activity_(make_epoll(kName)) {
  expects(!engines_.empty(), "at least one engine is needed");
  expects(engine_of_peer_.size() == static_cast<std::size_t>(size()), "one entry is needed for each rank");
  for (auto const& engine : engines_) {
    expects(engine->rank() == rank() && engine->size() == size(), "all engines must be of one rank and group");
    expects(engine->landing().data() == landing().data(), "all engines must land in one segment");
    expects(engine->lifeline_fd() >= 0 && engine->activity_fd() >= 0, "an engine must have descriptors to be combined");
    watch(lifelines_, engine->lifeline_fd(), kName);
    watch(activity_, engine->activity_fd(), kName);
  }
  for (std::size_t const engine : engine_of_peer_) expects(engine < engines_.size(), "there is no such engine");
  watch(activity_, bell_.fd(), kName);
}

CompositeEndpoint::~CompositeEndpoint() {
  while (!engines_.empty()) engines_.pop_back();  // The first engine owns the memory that the others write to.
}

void CompositeEndpoint::submit() {
  // Networks first: their transfer overlaps with the copies on this host.
  for (std::size_t i = engines_.size(); i > 0; --i) engines_[i - 1]->submit();
}

bool CompositeEndpoint::poll(ArrivalSink& sink) {
  bool found = false;
  for (auto const& engine : engines_) found = engine->poll(sink) || found;
  return found;
}

void CompositeEndpoint::retract() noexcept {
  for (auto const& engine : engines_) engine->retract();
}

void CompositeEndpoint::arm() {
  bell_.arm();
  for (auto const& engine : engines_) engine->arm();
}

bool CompositeEndpoint::wants_keep_alive() const {
  return std::ranges::any_of(engines_, [](auto const& engine) { return engine->wants_keep_alive(); });
}

void CompositeEndpoint::keep_alive() {
  for (auto const& engine : engines_) engine->keep_alive();
}

void CompositeEndpoint::disarm() {
  for (auto const& engine : engines_) engine->disarm();
  bell_.disarm();
}

void CompositeEndpoint::sleep(Deadline deadline) {
  std::array<epoll_event, 1> events;
  ::epoll_wait(activity_.get(), events.data(), events.size(), milliseconds_until(deadline));
  bell_.drain();
  // These calls do not block. Each lets its engine consume the event that woke this thread.
  for (auto const& engine : engines_) engine->sleep(Deadline::min());
}

HostShare CompositeEndpoint::host_share() const {
  HostShare most;
  for (auto const& engine : engines_) {
    HostShare const share = engine->host_share();
    if (share.num_ranks > most.num_ranks) most = share;
  }
  return most;
}

bool CompositeEndpoint::lands_by_polling() const {
  return std::ranges::any_of(engines_, [](auto const& engine) { return engine->lands_by_polling(); });
}

}  // namespace headway::comm
