#include "engines/inproc/endpoint.hpp"

#include "available_cores.hpp"
#include "engines/doorbell.hpp"
#include "rendezvous/random.hpp"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

namespace headway::comm {

namespace {

struct Event {
  enum class Kind { kArrival, kNotice, kLoss } kind;
  int source;
  Tag tag;
  std::string text;
};

/// Receive side of one rank: the memory and the events that other ranks write.
struct Mailbox {
  explicit Mailbox(std::size_t landing_bytes) : landing(landing_bytes / sizeof(Line) + 1) {}
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  [[nodiscard]] std::byte* landing_data() { return landing.front().bytes; }

  std::vector<Line> landing;
  std::mutex mutex;  ///< Guards all members below except the atomic and the doorbell, and the landing bytes.
  std::vector<Event> events;
  std::map<std::pair<int, SegmentId>, std::span<std::byte>> exposed;
  bool readable = true;  ///< False after retract(): peers must not get() any more.
  std::atomic<bool> has_events = false;
  Doorbell bell;
};

/// Shared state of all ranks of a group. Every endpoint holds a reference.
struct Hub {
  Hub(int size, std::size_t landing_size, InprocTraits the_traits)
      : landing_bytes(landing_size), traits(the_traits), is_taken(static_cast<std::size_t>(size)) {
    for (int rank = 0; rank < size; ++rank) mailboxes.push_back(std::make_unique<Mailbox>(landing_size));
  }
  std::size_t landing_bytes;
  InprocTraits traits;
  std::vector<std::unique_ptr<Mailbox>> mailboxes;
  std::vector<std::atomic<bool>> is_taken;  ///< (size) True if a rank has found this hub through the store.
  std::string generation = to_hex(random_bytes<16>());
};

class InprocEndpoint final : public Endpoint {
 public:
  InprocEndpoint(int rank, std::shared_ptr<Hub> hub)
      : rank_(rank),
        hub_(std::move(hub)),
        own_(*hub_->mailboxes[static_cast<std::size_t>(rank)]),
        put_counts_(hub_->mailboxes.size()) {}

  ~InprocEndpoint() override {
    retract();
    {
      std::lock_guard const lock(own_.mutex);
      own_.exposed.clear();
    }
    for (int peer = 0; peer < size(); ++peer) {
      if (peer != rank_) post(peer, {Event::Kind::kLoss, rank_, {}, "its endpoint was closed"});
    }
  }

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return static_cast<int>(hub_->mailboxes.size()); }
  [[nodiscard]] PeerTraits traits(int /*peer*/) const override {
    return {.engine = "inproc",
            .can_get = hub_->traits.can_get,
            .can_put_exposed = hub_->traits.can_put_exposed,
            .copies_at_put = true,
            .piece_bytes = hub_->traits.piece_bytes};
  }
  [[nodiscard]] std::span<std::byte> landing() override { return {own_.landing_data(), hub_->landing_bytes}; }

  Status put(Destination const& destination, std::span<std::byte const> header, std::span<std::byte const> payload,
             Tag tag) override {
    expects(destination.peer >= 0 && destination.peer < size() && destination.peer != rank_, "put: no such peer");
    expects(header.size() <= kMaxHeaderBytes, "put: the header is larger than kMaxHeaderBytes");
    Mailbox& target = mailbox(destination.peer);
    {
      std::lock_guard const lock(target.mutex);
      if (destination.segment == kLandingSegment) {
        std::size_t const needed = payload.empty() ? header.size() : kHeaderBytes + payload.size();
        expects(destination.offset <= hub_->landing_bytes && needed <= hub_->landing_bytes - destination.offset,
                "put: the range leaves the landing segment");
        std::byte* const to = target.landing_data() + destination.offset;
        if (!header.empty()) std::memcpy(to, header.data(), header.size());
        if (!payload.empty()) std::memcpy(to + kHeaderBytes, payload.data(), payload.size());
      } else if (auto const exposed = target.exposed.find({rank_, destination.segment});
                 exposed != target.exposed.end()) {
        auto const memory = exposed->second;
        expects(destination.offset <= memory.size() && payload.size() <= memory.size() - destination.offset,
                "put: the range leaves the exposed segment");
        if (!payload.empty()) std::memcpy(memory.data() + destination.offset, payload.data(), payload.size());
      }
    }
    post(destination.peer, {Event::Kind::kArrival, rank_, tag, {}});
    ++put_counts_[static_cast<std::size_t>(destination.peer)];
    return {};
  }

  void submit() override {}
  [[nodiscard]] std::uint64_t put_count(int peer) const override { return put_counts_[static_cast<std::size_t>(peer)]; }
  [[nodiscard]] std::uint64_t flushed(int peer) const override { return put_count(peer); }

  bool poll(ArrivalSink& sink) override {
    if (!own_.has_events.load(std::memory_order_acquire)) return false;
    {
      std::lock_guard const lock(own_.mutex);
      std::swap(events_, own_.events);
      own_.has_events.store(false, std::memory_order_relaxed);
    }
    for (auto const& event : events_) {
      switch (event.kind) {
        case Event::Kind::kArrival:
          sink.arrived(event.source, event.tag);
          break;
        case Event::Kind::kNotice:
          sink.notice(event.source, event.text);
          break;
        case Event::Kind::kLoss:
          sink.lost(event.source, event.text);
          break;
      }
    }
    events_.clear();
    return true;
  }

  Status get(int peer, std::uint64_t address, std::span<std::byte> local) override {
    expects(hub_->traits.can_get, "get: this endpoint has no access to its peers' memory");
    std::lock_guard const lock(mailbox(peer).mutex);
    if (!mailbox(peer).readable) return {StatusCode::kAborted, "rank " + std::to_string(peer) + " has given up"};
    if (!local.empty()) std::memcpy(local.data(), reinterpret_cast<std::byte const*>(address), local.size());
    return {};
  }

  bool claim(int owner, std::uint64_t offset, std::uint64_t value) override {
    expects(hub_->traits.can_get, "claim: this endpoint has no access to its peers' memory");
    expects(offset <= hub_->landing_bytes && sizeof value <= hub_->landing_bytes - offset,
            "claim: the word is outside of the landing segment");
    Mailbox& target = mailbox(owner);
    std::lock_guard const lock(target.mutex);
    std::uint64_t taken = 0;
    std::memcpy(&taken, target.landing_data() + offset, sizeof taken);
    if (taken >= value) return false;
    std::memcpy(target.landing_data() + offset, &value, sizeof value);
    return true;
  }

  void retract() noexcept override {
    std::lock_guard const lock(own_.mutex);
    own_.readable = false;
  }

  bool expose(int peer, SegmentId segment, std::span<std::byte> memory) override {
    expects(segment != kLandingSegment, "expose: segment 0 is the landing segment");
    std::lock_guard const lock(own_.mutex);
    own_.exposed[{peer, segment}] = memory;
    return true;
  }
  void withdraw(int peer, SegmentId segment) override {
    std::lock_guard const lock(own_.mutex);
    own_.exposed.erase({peer, segment});
  }

  void send_notice(int peer, std::string_view text) noexcept override {
    post(peer, {Event::Kind::kNotice, rank_, {}, std::string(text)});
  }

  void arm() override { own_.bell.arm(); }
  void disarm() override { own_.bell.disarm(); }
  void sleep(Deadline deadline) override { own_.bell.sleep(deadline); }
  void wake() noexcept override { own_.bell.ring(); }
  [[nodiscard]] int lifeline_fd() const override { return -1; }
  [[nodiscard]] int activity_fd() const override { return own_.bell.fd(); }
  [[nodiscard]] HostShare host_share() const override {
    return {.num_ranks = size(), .num_cores = num_usable(own_cores())};
  }
  [[nodiscard]] bool lands_by_polling() const override { return false; }

 private:
  [[nodiscard]] Mailbox& mailbox(int peer) { return *hub_->mailboxes[static_cast<std::size_t>(peer)]; }

  void post(int peer, Event event) {
    Mailbox& target = mailbox(peer);
    {
      std::lock_guard const lock(target.mutex);
      target.events.push_back(std::move(event));
      target.has_events.store(true, std::memory_order_release);
    }
    target.bell.ring_if_armed();
  }

  int rank_;
  std::shared_ptr<Hub> hub_;
  Mailbox& own_;
  std::vector<std::uint64_t> put_counts_;
  std::vector<Event> events_;
};

/// Hubs of this process by number. Entries are weak: rank 0 gives up after its timeout, and a rank may then find its
/// hub gone.
class Hubs {
 public:
  static Hubs& of_process() {
    static auto& hubs = *new Hubs;
    return hubs;
  }
  std::uint64_t add(std::shared_ptr<Hub> const& hub) {
    std::lock_guard const lock(mutex_);
    std::erase_if(hubs_, [](auto const& each) { return each.second.expired(); });
    hubs_.emplace(++num_added_, hub);
    return num_added_;
  }
  [[nodiscard]] std::shared_ptr<Hub> find(std::uint64_t number) const {
    std::lock_guard const lock(mutex_);
    auto const found = hubs_.find(number);
    return found == hubs_.end() ? nullptr : found->second.lock();
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::uint64_t, std::weak_ptr<Hub>> hubs_;
  std::uint64_t num_added_ = 0;
};

}  // namespace

std::vector<std::unique_ptr<Endpoint>> make_inproc_endpoints(int size, std::size_t landing_bytes, InprocTraits traits) {
  auto const hub = std::make_shared<Hub>(size, landing_bytes, traits);
  std::vector<std::unique_ptr<Endpoint>> endpoints;
  for (int rank = 0; rank < size; ++rank) endpoints.push_back(std::make_unique<InprocEndpoint>(rank, hub));
  return endpoints;
}

namespace {

/// Looks up the hub that rank 0 published. Returns null if it is gone or belongs to an earlier group of the same name;
/// `problem` then says which.
std::shared_ptr<Hub> find_hub(int rank, std::string const& value, std::string& problem) {
  std::size_t end = 0;
  expects(std::stol(value, &end) == getpid(), "engine inproc: rank 0 is another process; use shm");
  auto hub = Hubs::of_process().find(std::stoull(value.substr(end)));
  if (hub == nullptr) {
    problem = "rank 0 has given up before this rank came";
  } else if (static_cast<std::size_t>(rank) < hub->is_taken.size() &&
             hub->is_taken[static_cast<std::size_t>(rank)].exchange(true)) {
    problem = "rank 0 has not come again since the last group of this name";
    hub.reset();
  }
  return hub;
}

}  // namespace

InprocConnection connect_inproc_endpoint(int rank, int size, std::size_t landing_bytes, Store& store,
                                         std::string const& name, std::chrono::milliseconds timeout) {
  // Rank 0 creates the hub, publishes its number with the process id as a check, and waits for all others to take it.
  // The store may still hold the number of an earlier hub: a rank whose place there is taken looks again.
  std::string const key = name + "/inproc/hub";
  auto const taken_key = [&](std::string const& hub, int peer) {
    return name + "/inproc/" + hub + "/taken/" + std::to_string(peer);
  };
  if (rank == 0) {
    auto const hub = std::make_shared<Hub>(size, landing_bytes, InprocTraits{});
    std::string const number = std::to_string(getpid()) + " " + std::to_string(Hubs::of_process().add(hub));
    store.set(key, number);
    for (int peer = 1; peer < size; ++peer) store.get(taken_key(number, peer), timeout);
    return {std::make_unique<InprocEndpoint>(rank, hub), hub->generation};
  }
  auto const deadline = Clock::now() + timeout;
  std::string number = store.get(key, timeout);
  std::string problem;
  std::shared_ptr<Hub> hub;
  while ((hub = find_hub(rank, number, problem)) == nullptr) {
    if (Clock::now() >= deadline) throw SystemError("engine inproc: " + problem);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    number = store.get(key, timeout);
  }
  store.set(taken_key(number, rank), "1");
  expects(static_cast<int>(hub->mailboxes.size()) == size && hub->landing_bytes == landing_bytes,
          "ranks disagree on the group's size or options");
  return {std::make_unique<InprocEndpoint>(rank, hub), hub->generation};
}

}  // namespace headway::comm
