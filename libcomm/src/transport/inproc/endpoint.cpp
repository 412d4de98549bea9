// SPDX-License-Identifier: Apache-2.0

// Transport between threads of one process: every operation takes the receiver's mutex.
//
// It is the simplest implementation of the Endpoint contract, and so the one that others are compared with in tests.
// It copies at put(), delivers in order, and has no capacity limit: put() never returns kWouldBlock.
//
// Locks: one mutex per rank guards that rank's memory and events, and another lock the memory that peers get(). No call
// holds two of them.
// Order: an event is pushed under the mutex, then has_events is set with release order. poll() reads it with acquire
//  order without the lock, so an idle poll costs one load.

#include "transport/inproc/endpoint.hpp"

#include "system/available_cores.hpp"
#include "system/random.hpp"
#include "transport/doorbell.hpp"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <thread>
#include <utility>

namespace headway::comm {

namespace {

struct Event {
  enum class Kind { kArrival, kOob, kLoss } kind;
  int source;
  Tag tag;
  std::string text;
};

/// Receive side of one rank: the memory and the events that other ranks write.
struct Mailbox {
  explicit Mailbox(std::size_t receive_buffer_bytes) : receive_buffer(receive_buffer_bytes / sizeof(Line) + 1) {}
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  [[nodiscard]] std::byte* data() { return receive_buffer.front().bytes; }

  std::vector<Line> receive_buffer;
  /// Guards the bytes of receive_buffer, and the members below that do not say otherwise.
  std::mutex mutex;
  std::vector<Event> events;
  std::map<std::pair<int, WindowId>, std::span<std::byte>> windows;
  std::shared_mutex reading;  ///< Peers share it while they get(): a long copy must not delay this rank's events.
  bool readable = true;       ///< False after retract(): peers must not get() any more. Guarded by `reading`.
  std::atomic<bool> has_events = false;
  Doorbell bell;
};

/// Shared state of all ranks of a group. Every endpoint holds a reference, so mailboxes live until the last rank is
/// gone, and a late put to a rank that has left is harmless.
struct Hub {
  Hub(int size, std::size_t receive_buffer_size, InprocTraits the_traits)
      : receive_buffer_bytes(receive_buffer_size), traits(the_traits), is_taken(static_cast<std::size_t>(size)) {
    for (int rank = 0; rank < size; ++rank) mailboxes.push_back(std::make_unique<Mailbox>(receive_buffer_size));
  }
  std::size_t receive_buffer_bytes;
  InprocTraits traits;
  std::vector<std::unique_ptr<Mailbox>> mailboxes;
  std::vector<std::atomic<bool>> is_taken;              ///< (size) True if a rank has found this hub through the store.
  std::string generation = to_hex(random_bytes<16>());  ///< Equal on all ranks of this group; no other group has it.
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
      own_.windows.clear();
    }
    // Only after this rank's own memory is safe do the others learn that it is gone.
    for (int peer = 0; peer < size(); ++peer) {
      if (peer != rank_) post(peer, {Event::Kind::kLoss, rank_, {}, "its endpoint was closed"});
    }
  }

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return static_cast<int>(hub_->mailboxes.size()); }
  [[nodiscard]] PeerTraits traits(int /*peer*/) const override {
    return {.transport = "inproc",
            .can_get = hub_->traits.can_get,
            .can_put_to_window = hub_->traits.can_put_to_window,
            .copies_at_put = true,
            .piece_bytes = hub_->traits.piece_bytes};
  }
  [[nodiscard]] std::span<std::byte> receive_buffer() override { return {own_.data(), hub_->receive_buffer_bytes}; }

  Status put(Destination const& destination, std::span<std::byte const> header, std::span<std::byte const> payload,
             Tag tag) override {
    expects(destination.peer >= 0 && destination.peer < size() && destination.peer != rank_, "put: no such peer");
    expects(header.size() <= kMaxHeaderBytes, "put: the header is larger than kMaxHeaderBytes");
    Mailbox& target = mailbox(destination.peer);
    {
      std::lock_guard const lock(target.mutex);
      if (destination.window == kReceiveBuffer) {
        // A payload lies kHeaderBytes behind the offset, whether or not there is a header: receivers rely on that.
        std::size_t const needed = payload.empty() ? header.size() : kHeaderBytes + payload.size();
        expects(destination.offset <= hub_->receive_buffer_bytes &&
                    needed <= hub_->receive_buffer_bytes - destination.offset,
                "put: the range leaves the receive buffer");
        std::byte* const to = target.data() + destination.offset;
        if (!header.empty()) std::memcpy(to, header.data(), header.size());
        if (!payload.empty()) std::memcpy(to + kHeaderBytes, payload.data(), payload.size());
      } else if (auto const window = target.windows.find({rank_, destination.window}); window != target.windows.end()) {
        auto const memory = window->second;
        expects(destination.offset <= memory.size() && payload.size() <= memory.size() - destination.offset,
                "put: the range leaves the window");
        if (!payload.empty()) std::memcpy(memory.data() + destination.offset, payload.data(), payload.size());
      }  // Otherwise the window is closed, and the payload is dropped.
    }
    // After the bytes are in place. The receiver's lock, taken again by post(), makes them visible to its poll().
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
      // Swap, so that the sink runs without the lock: it may call put(), which takes a lock.
      std::swap(events_, own_.events);
      own_.has_events.store(false, std::memory_order_relaxed);
    }
    for (auto const& event : events_) {
      switch (event.kind) {
        case Event::Kind::kArrival:
          sink.arrived(event.source, event.tag);
          break;
        case Event::Kind::kOob:
          sink.on_oob(event.source, event.text);
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
    // Under the lock, so retract() has not returned while a peer still copies.
    std::shared_lock const lock(mailbox(peer).reading);
    if (!mailbox(peer).readable) return {StatusCode::kAborted, "rank " + std::to_string(peer) + " has given up"};
    if (!local.empty()) std::memcpy(local.data(), reinterpret_cast<std::byte const*>(address), local.size());
    return {};
  }

  bool claim(int owner, std::uint64_t offset, std::uint64_t value) override {
    expects(hub_->traits.can_get, "claim: this endpoint has no access to its peers' memory");
    expects(offset <= hub_->receive_buffer_bytes && sizeof value <= hub_->receive_buffer_bytes - offset,
            "claim: the word is outside of the receive buffer");
    Mailbox& target = mailbox(owner);
    std::lock_guard const lock(target.mutex);
    std::uint64_t taken = 0;
    std::memcpy(&taken, target.data() + offset, sizeof taken);
    // The words are ordinary bytes of the receive buffer. The mutex makes comparison and store one step.
    if (taken >= value) return false;
    std::memcpy(target.data() + offset, &value, sizeof value);
    return true;
  }

  void retract() noexcept override {
    std::lock_guard const lock(own_.reading);
    own_.readable = false;
  }

  bool open_window(int peer, WindowId window, std::span<std::byte> memory) override {
    expects(window != kReceiveBuffer, "open_window: window 0 is the receive buffer");
    std::lock_guard const lock(own_.mutex);
    own_.windows[{peer, window}] = memory;
    return true;
  }
  void close_window(int peer, WindowId window) override {
    std::lock_guard const lock(own_.mutex);
    own_.windows.erase({peer, window});
  }

  void send_oob(int peer, std::string_view text) noexcept override {
    post(peer, {Event::Kind::kOob, rank_, {}, std::string(text)});
  }

  void arm() override { own_.bell.arm(); }
  void disarm() override { own_.bell.disarm(); }
  void sleep(Deadline deadline) override { own_.bell.sleep(deadline); }
  void wake() noexcept override { own_.bell.ring(); }
  [[nodiscard]] int control_fd() const override { return -1; }
  [[nodiscard]] int activity_fd() const override { return own_.bell.fd(); }
  [[nodiscard]] HostShare host_share() const override {
    return {.num_ranks = size(), .num_cores = num_usable(own_cores())};
  }
  [[nodiscard]] bool receives_by_polling() const override { return false; }

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
    // Never destroyed: a rank's thread may still connect while static objects are destroyed.
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

std::vector<std::unique_ptr<Endpoint>> make_inproc_endpoints(int size, std::size_t receive_buffer_bytes,
                                                             InprocTraits traits) {
  auto const hub = std::make_shared<Hub>(size, receive_buffer_bytes, traits);
  std::vector<std::unique_ptr<Endpoint>> endpoints;
  for (int rank = 0; rank < size; ++rank) endpoints.push_back(std::make_unique<InprocEndpoint>(rank, hub));
  return endpoints;
}

namespace {

/// Looks up the hub that rank 0 published. `value`: process id and number of the hub. Returns null if it is gone or
/// belongs to an earlier group of the same name; `problem` then says which.
std::shared_ptr<Hub> find_hub(int rank, std::string const& value, std::string& problem) {
  std::size_t end = 0;
  // An address of another process would be meaningless here, so the process id travels with the number.
  expects(std::stol(value, &end) == getpid(), "transport inproc: rank 0 is another process; use shm");
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

InprocConnection connect_inproc_endpoint(int rank, int size, std::size_t receive_buffer_bytes, Store& store,
                                         std::string const& name, std::chrono::milliseconds timeout) {
  // Rank 0 creates the hub, publishes its number with the process id as a check, and waits for all others to take it.
  // The store may still hold the number of an earlier hub, which this rank has used before: then it reads the key
  // again.
  std::string const key = name + "/inproc/hub";
  auto const taken_key = [&](std::string const& hub, int peer) {
    return name + "/inproc/" + hub + "/taken/" + std::to_string(peer);
  };
  if (rank == 0) {
    auto const hub = std::make_shared<Hub>(size, receive_buffer_bytes, InprocTraits{});
    std::string const hub_name = std::to_string(getpid()) + " " + std::to_string(Hubs::of_process().add(hub));
    store.set(key, hub_name);
    for (int peer = 1; peer < size; ++peer) store.get(taken_key(hub_name, peer), timeout);
    return {std::make_unique<InprocEndpoint>(rank, hub), hub->generation};
  }
  auto const deadline = Clock::now() + timeout;
  std::string hub_name = store.get(key, timeout);
  std::string problem;
  std::shared_ptr<Hub> hub;
  while ((hub = find_hub(rank, hub_name, problem)) == nullptr) {
    if (Clock::now() >= deadline) throw SystemError("transport inproc: " + problem);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    hub_name = store.get(key, timeout);
  }
  store.set(taken_key(hub_name, rank), "1");
  expects(static_cast<int>(hub->mailboxes.size()) == size && hub->receive_buffer_bytes == receive_buffer_bytes,
          "ranks disagree on the group's size or options");
  return {std::make_unique<InprocEndpoint>(rank, hub), hub->generation};
}

}  // namespace headway::comm
