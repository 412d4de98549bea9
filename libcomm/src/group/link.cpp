// SPDX-License-Identifier: Apache-2.0

// Links: groups of two ranks whose store is the connection over which one dialled the other.
//
// Idea: each side sends the name of the link, the one that dialled first, so that a stranger or the wrong job is found
// at once. Then both connect a group as ever: rank 0 announces itself over the dialled connection, and the handshake
// proves that both know the secret. A side that is done says so and waits for the same from its peer, since that may
// still read the store.
//
// Example: a worker dials "ps-0.ps:7000". The listener accepts, a thread of it reads "name/1" and answers "name/0",
// and both run Group::connect(). After "joined/0" and "joined/1" the connection is closed, and accept() returns.
//
// Invariants: a peer that is slow, silent or a stranger delays no other, since each has a thread for its join, and at
// most LinkListener::kMostPending at a time. If all places are taken, the peer that has sent no name for the longest
// time loses its place to the next one. A join ends within the time limit, or 100 ms after close(). A side whose
// connection ends before the listener's name has come dials again: the listener was restarted, or its place was taken.
// Complexity: one connection and four short messages beside those of a group.
// Source: docs/design/links.md has the cost of a link, and why it has no class of its own.

#include "headway/comm/link.hpp"

#include "bootstrap/handshake.hpp"
#include "bootstrap/socket_store.hpp"
#include "group/option_check.hpp"
#include "headway/base/log.hpp"
#include "headway/comm/status.hpp"
#include "system/signal_mask.hpp"
#include "system/sockets.hpp"

#include <netdb.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <list>
#include <mutex>
#include <optional>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace headway::comm {

namespace {

using std::chrono::milliseconds;

/// Time in which a peer has to send the name of the link.
constexpr milliseconds kHelloTime(5000);
/// Pauses between two tries to dial.
constexpr milliseconds kFirstPause(20), kLongestPause(500);
/// Time of a try to connect to one address. Then others are tried, and the name is looked up again.
constexpr milliseconds kTryTime(2000);
constexpr milliseconds kTick(100);
/// Pause between two log records of refusals.
constexpr milliseconds kLogPause(1000);

struct HostPort {
  std::string host;
  std::uint16_t port = 0;
};

/// Splits "HOST:PORT" or "[IPV6]:PORT". @throws UsageError.
HostPort split_address(std::string const& address) {
  std::size_t const colon = address.rfind(':');
  std::string_view host = std::string_view(address).substr(0, colon == std::string::npos ? 0 : colon);
  if (host.starts_with('[') && host.ends_with(']')) {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    host = {};
  }
  std::uint16_t port = 0;
  char const* const end = address.data() + address.size();
  auto const parsed = std::from_chars(address.data() + std::min(colon + 1, address.size()), end, port);
  expects(!host.empty() && parsed.ec == std::errc() && parsed.ptr == end,
          "'" + address + "' is no address of a link, such as 10.0.0.1:7000, [fd00::1]:7000 or ps-0:7000");
  return {.host = std::string(host), .port = port};
}

/// Addresses of a host by its name now. @returns none if the name is unknown; `error` then has the reason.
std::vector<SocketAddress> resolve(HostPort const& wanted, std::string& error) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  int const failed = ::getaddrinfo(wanted.host.c_str(), nullptr, &hints, &list);
  std::vector<SocketAddress> found;
  if (failed != 0) {
    error = std::string("the name is not known: ") + ::gai_strerror(failed);
    return found;
  }
  for (addrinfo const* each = list; each != nullptr; each = each->ai_next) {
    found.push_back(SocketAddress(each->ai_addr, each->ai_addrlen).with_port(wanted.port));
  }
  ::freeaddrinfo(list);
  return found;
}

/// Connects to one address until `until`. @returns nothing if it fails; `error` then has the reason.
std::optional<base::FileDescriptor> connect_to(SocketAddress const& address, Deadline until,
                                               std::function<void()> const& while_waiting, std::string& error) {
  base::FileDescriptor socket;
  int failed = start_connect(address, {}, socket);
  while (failed == EINPROGRESS && Clock::now() < until) {
    pollfd waited{.fd = socket.get(), .events = POLLOUT, .revents = 0};
    if (::poll(&waited, 1, static_cast<int>(kTick.count())) > 0) {
      socklen_t length = sizeof failed;
      if (::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &failed, &length) != 0) failed = errno;
      break;
    }
    if (while_waiting) while_waiting();
  }
  if (failed == 0) return socket;
  error = address.to_string() + ": " + (failed == EINPROGRESS ? "no answer" : std::system_category().message(failed));
  return std::nullopt;
}

/// Time until then, at least 1 ms.
milliseconds left_until(Deadline until) {
  return std::max(milliseconds(1), std::chrono::duration_cast<milliseconds>(until - Clock::now()));
}

std::string key(std::string_view name, int of_rank) { return std::string(name) + "/" + std::to_string(of_rank); }

/// The connection ended before the listener said who it is.
class NotAnswered : public SystemError {
 public:
  using SystemError::SystemError;
};

/// Exchanges the names of the link. The side that dialled (rank 1) sends first. @throws NotAnswered to that side
void exchange_names(int rank, SocketStore& store, std::string const& peer, GroupOptions const& options) {
  std::string name;
  if (rank == 0) {
    name = store.get(key("name", 1), std::min(kHelloTime, options.connect_timeout));
    store.set(key("name", 0), options.name);
  } else {
    try {
      store.set(key("name", 1), options.name);
      name = store.get(key("name", 0), options.connect_timeout);  // It may wait in the listener's backlog.
    } catch (PeerClosed const& error) {
      throw NotAnswered(error.what());
    }
  }
  if (name != options.name) {
    throw SystemError(peer + " has the link '" + printable(std::move(name)) + "', and this is '" + options.name + "'");
  }
}

/// Makes the group over a connection, within options.connect_timeout. Both sides call it.
/// @param on_named called once the peer has sent its name
std::unique_ptr<Group> join(
    int rank, base::FileDescriptor socket, std::string const& peer, GroupOptions options,
    std::function<void()> const& on_named = [] {}) {
  Deadline const until = deadline_after(options.connect_timeout);
  SocketStore store(std::move(socket), peer, options.while_connecting);
  exchange_names(rank, store, peer, options);
  on_named();
  options.connect_timeout = left_until(until);
  options.warns_of_departures = false;
  auto group = Group::connect(rank, 2, store, std::move(options));
  store.set(key("joined", rank), "");
  static_cast<void>(store.get(key("joined", 1 - rank), left_until(until)));
  return group;
}

SystemError no_link(GroupOptions const& options, std::string const& address, std::string const& reason) {
  return SystemError("link '" + options.name + "' to " + address + ": " + reason);
}

std::string nobody_answers(GroupOptions const& options, std::string const& last_error) {
  return "nobody answers within " + std::to_string(options.connect_timeout.count()) + " ms (" + last_error + ")";
}

/// @throws UsageError
void check_link_options(GroupOptions options) {
  expects(!options.secret.empty(), "a link needs a secret: whoever reaches the port could join without one");
  expects(options.transport != Transport::kInproc, "a link joins processes, and transport inproc does not");
  check_options(0, 2, options);
}

/// Thrown in a join when the listener closes.
struct IsClosed {};
/// Thrown in a join whose place another peer gets.
class IsDropped : public SystemError {
 public:
  using SystemError::SystemError;
};

}  // namespace

class LinkListener::Impl {
 public:
  Impl(std::string const& address, GroupOptions options) : options_(std::move(options)) {
    check_link_options(options_);
    auto const wanted = split_address(address);
    auto const numeric = SocketAddress::numeric(wanted.host, wanted.port);
    expects(numeric.has_value(), "'" + address + "': a listener needs a numeric address");
    socket_ = listen_on(*numeric);
    address_ = own_address(socket_.get()).to_string();
    wake_ = base::FileDescriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!wake_.valid()) throw SystemError("eventfd", errno, address_);
    options_.connect_timeout = std::min<milliseconds>(options_.connect_timeout, kLongestJoin);
    BlockedSignals const blocked;
    acceptor_ = std::thread([this] { run(); });
  }
  ~Impl() {
    close();
    acceptor_.join();
    for (auto& each : joiners_) each.thread.join();
  }
  /// A forked child has none of the threads, and locks may be held: it must not destroy this object.
  [[nodiscard]] bool is_of_this_process() const { return ::getpid() == owner_; }
  Impl(Impl const&) = delete;
  Impl& operator=(Impl const&) = delete;

  [[nodiscard]] std::string const& address() const { return address_; }

  std::unique_ptr<Group> accept(milliseconds timeout) {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, deadline_after(timeout), [this] { return is_closed_->load() || !joined_.empty(); });
    if (is_closed_->load() || joined_.empty()) return nullptr;
    auto group = std::move(joined_.front());
    joined_.pop_front();
    ::eventfd_write(wake_.get(), 1);  // There may be room for a peer of the backlog.
    return group;
  }

  void close() {
    std::deque<std::unique_ptr<Group>> not_accepted;
    {
      std::lock_guard const lock(mutex_);
      is_closed_->store(true);
      not_accepted.swap(joined_);
    }
    changed_.notify_all();
    ::eventfd_write(wake_.get(), 1);
  }

  [[nodiscard]] LinkRefusals refusals() const {
    std::lock_guard const lock(mutex_);
    return refusals_;
  }

 private:
  /// State that a join shares with the acceptor. Callbacks of the group's options may outlive both.
  struct JoinState {
    std::atomic<bool> is_named = false;    ///< The peer has sent its name.
    std::atomic<bool> is_dropped = false;  ///< Its place is another peer's.
    std::atomic<bool> is_joined = false;
  };
  struct Joiner {
    std::thread thread;
    std::shared_ptr<JoinState> state = std::make_shared<JoinState>();
    std::atomic<bool> is_done = false;
  };

  /// The acceptor's thread.
  void run() noexcept {
    while (!is_closed_->load()) {
      try {
        step();
      } catch (std::exception const& error) {  // No memory was left.
        refuse("a peer", error.what());
        std::this_thread::sleep_for(kTick);
      }
    }
    socket_.reset();
  }

  void step() {
    std::erase_if(joiners_, [](Joiner& each) {
      if (!each.is_done.load()) return false;
      each.thread.join();
      return true;
    });
    pollfd waited[2] = {{.fd = wake_.get(), .events = POLLIN, .revents = 0},
                        {.fd = socket_.get(), .events = POLLIN, .revents = 0}};
    ::poll(waited, has_room() || can_make_room() ? 2 : 1, -1);
    eventfd_t count = 0;
    ::eventfd_read(wake_.get(), &count);
    if ((waited[1].revents & POLLIN) == 0) return;
    if (!has_room()) {
      auto const unnamed = oldest_unnamed();
      if (unnamed == joiners_.end()) return;  // It has sent its name meanwhile.
      unnamed->state->is_dropped.store(true);
    }
    begin_join();
  }

  [[nodiscard]] bool has_room() { return num_pending() < kMostPending; }
  [[nodiscard]] bool can_make_room() { return joiners_.size() < kMostThreads && oldest_unnamed() != joiners_.end(); }

  /// Peers that are joined and not dropped, or that nobody has accepted.
  [[nodiscard]] int num_pending() {
    auto const joining = std::ranges::count_if(
        joiners_, [](Joiner const& each) { return !each.is_done.load() && !each.state->is_dropped.load(); });
    std::lock_guard const lock(mutex_);
    return static_cast<int>(joining) + static_cast<int>(joined_.size());
  }

  [[nodiscard]] std::list<Joiner>::iterator oldest_unnamed() {
    return std::ranges::find_if(joiners_, [](Joiner const& each) {
      return !each.is_done.load() && !each.state->is_named.load() && !each.state->is_dropped.load();
    });
  }

  void begin_join() {
    sockaddr_storage storage{};
    socklen_t length = sizeof storage;
    auto* const from = reinterpret_cast<sockaddr*>(&storage);
    base::FileDescriptor socket(::accept4(socket_.get(), from, &length, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.valid()) {
      if (would_block() || errno == EINTR || errno == ECONNABORTED) return;
      refuse("a peer", std::string("accept: ") + std::system_category().message(errno));
      std::this_thread::sleep_for(kTick);  // No descriptor is left: the peer stays in the backlog.
      return;
    }
    auto const peer = SocketAddress(from, length).to_string();
    auto& joiner = joiners_.emplace_back();
    try {
      joiner.thread = std::thread([this, &joiner, peer, accepted = std::move(socket)]() mutable {
        try_join(std::move(accepted), peer, joiner.state);
        joiner.is_done.store(true);
        ::eventfd_write(wake_.get(), 1);
      });
    } catch (std::system_error const& error) {
      joiners_.pop_back();
      refuse(peer, std::string("no thread is left: ") + error.what());
    }
  }

  void try_join(base::FileDescriptor socket, std::string const& peer, std::shared_ptr<JoinState> const& state) {
    try {
      tune_connection(socket.get());
      // The group keeps its options, so the callback outlives the listener, and does nothing after the join.
      auto options = options_;
      options.while_connecting = [state, is_closed = is_closed_] {
        if (state->is_joined.load()) return;
        if (is_closed->load()) throw IsClosed();
        if (state->is_dropped.load()) throw IsDropped("it sent no name, and others wanted its place");
      };
      auto group = join(0, std::move(socket), peer, std::move(options), [&] { state->is_named.store(true); });
      state->is_joined.store(true);
      std::lock_guard const lock(mutex_);
      if (is_closed_->load()) return;  // Ends the group.
      joined_.push_back(std::move(group));
    } catch (IsClosed const&) {
      return;
    } catch (std::exception const& error) {
      refuse(peer, error.what());
    }
    changed_.notify_one();
  }

  /// Counts a refusal, and logs one a second at most.
  void refuse(std::string const& peer, std::string const& reason) {
    std::uint64_t not_logged = 0;
    {
      std::lock_guard const lock(mutex_);
      ++refusals_.count;
      refusals_.last_reason = printable(reason);
      if (Clock::now() < next_log_) {
        ++not_logged_;
        return;
      }
      next_log_ = Clock::now() + kLogPause;
      not_logged = std::exchange(not_logged_, 0);
    }
    auto const others = not_logged == 0 ? "" : " (and " + std::to_string(not_logged) + " others before)";
    base::log(base::LogLevel::kWarning, "group", 0,
              "link '" + options_.name + "': " + peer + " was not joined: " + printable(reason) + others);
  }

  /// Threads of joins. Those that were dropped end within kTick.
  static constexpr std::size_t kMostThreads = 2 * kMostPending;

  pid_t const owner_ = ::getpid();
  GroupOptions options_;
  base::FileDescriptor socket_, wake_;
  std::string address_;
  /// Set under mutex_. Callbacks of joins share it.
  std::shared_ptr<std::atomic<bool>> const is_closed_ = std::make_shared<std::atomic<bool>>(false);
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::unique_ptr<Group>> joined_;  ///< Guarded by mutex_.
  LinkRefusals refusals_;                      ///< Guarded by mutex_.
  Deadline next_log_{};                        ///< Guarded by mutex_.
  std::uint64_t not_logged_ = 0;               ///< Refusals since the last log record; guarded by mutex_.
  std::list<Joiner> joiners_;                  ///< Only the acceptor's thread uses it, then the destructor.
  std::thread acceptor_;
};

LinkListener::LinkListener(std::string const& address, GroupOptions options)
    : impl_(std::make_unique<Impl>(address, std::move(options))) {}
LinkListener::~LinkListener() {
  if (!impl_->is_of_this_process()) static_cast<void>(impl_.release());  // NOLINT(bugprone-unused-return-value)
}
std::string const& LinkListener::address() const { return impl_->address(); }
std::unique_ptr<Group> LinkListener::accept(milliseconds timeout) { return impl_->accept(timeout); }
void LinkListener::close() { impl_->close(); }
LinkRefusals LinkListener::refusals() const { return impl_->refusals(); }

std::unique_ptr<Group> dial(std::string const& address, GroupOptions const& options) {
  check_link_options(options);
  auto const wanted = split_address(address);
  Deadline const until = deadline_after(options.connect_timeout);
  std::string error = "no try was made";
  for (milliseconds pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    auto const candidates = resolve(wanted, error);
    for (auto const& candidate : candidates) {
      Deadline const try_until = std::min(until, Clock::now() + kTryTime);
      auto socket = connect_to(candidate, try_until, options.while_connecting, error);
      if (!socket) continue;
      auto remaining = options;
      remaining.connect_timeout = left_until(until);
      try {
        return join(1, std::move(*socket), "the listener at " + candidate.to_string(), std::move(remaining));
      } catch (NotAnswered const& failure) {
        error = failure.what();
      } catch (SystemError const& failure) {
        throw no_link(options, address, failure.what());
      }
    }
    if (Clock::now() + pause >= until) {
      throw no_link(options, address, nobody_answers(options, error));
    }
    std::this_thread::sleep_for(pause);
    if (options.while_connecting) options.while_connecting();
  }
}

}  // namespace headway::comm
