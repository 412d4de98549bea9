// SPDX-License-Identifier: Apache-2.0

// Checked transport: verifies the Endpoint contract around any other transport and injects faults into arrivals.
//
// Idea: every call passes three checks. The arguments must be legal (peer, range, header size). The call must not
// overlap another one (CallGuard). The wrapped transport's answer must be possible: put_count() rises by one per
// accepted put, flushed() never falls and never passes put_count(), and nothing comes from a peer after its loss.
// SourceLedger keeps a checksum of each payload, the source of its put, until the put is flushed. A mismatch shows that
// the caller changed a payload too early.
//
// Example: rank 0 puts 8 bytes to rank 1, then overwrites them before flushed(1) reaches 1. The next call that checks
// flushed sources, here poll(), throws "the source of put 1 to rank 1 was changed before it was flushed".
//
// With a fault seed, arrivals go to FaultSchedule instead of the caller's sink. While it holds any, poll() returns
// true, sleep() does not block, and HeldSignal makes both descriptors readable: no caller sleeps over an arrival.
//
// Invariants: faults delay, reorder and repeat notifications, but never drop one; all from a peer are delivered before
// its loss. The same seed and the same calls give the same schedule.
// Complexity: two passes over each payload; O(peers) per poll().
// Source: the contract is in include/headway/comm/endpoint.hpp; tests/libcomm/transport/checked_endpoint_test.cpp.

#include "transport/checked/endpoint.hpp"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>

namespace headway::comm {
namespace {

std::string rank_text(int rank) { return "rank " + std::to_string(rank); }

int checked_descriptor(int fd, std::string_view call) {
  if (fd < 0) throw SystemError(call, errno, "checked endpoint");
  return fd;
}

}  // namespace

/// Makes both descriptors of the endpoint readable while arrivals are held back.
class CheckedEndpoint::HeldSignal {
 public:
  explicit HeldSignal(Endpoint const& inner)
      : event_fd_(checked_descriptor(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), "eventfd")),
        control_fd_(joined_with(inner.control_fd())),
        activity_fd_(joined_with(inner.activity_fd())) {}
  ~HeldSignal() {
    for (int const fd : {activity_fd_, control_fd_, event_fd_}) {
      if (fd >= 0) ::close(fd);
    }
  }
  HeldSignal(HeldSignal const&) = delete;
  HeldSignal& operator=(HeldSignal const&) = delete;

  void raise() { ::eventfd_write(event_fd_, 1); }
  void lower() {
    eventfd_t value = 0;
    ::eventfd_read(event_fd_, &value);
  }
  [[nodiscard]] int control_fd() const { return control_fd_; }
  [[nodiscard]] int activity_fd() const { return activity_fd_; }

 private:
  [[nodiscard]] int joined_with(int inner_fd) const {
    if (inner_fd < 0) return -1;
    int const joined = checked_descriptor(::epoll_create1(EPOLL_CLOEXEC), "epoll_create1");
    for (int const fd : {inner_fd, event_fd_}) {
      epoll_event event{};
      event.events = EPOLLIN;
      checked_descriptor(::epoll_ctl(joined, EPOLL_CTL_ADD, fd, &event), "epoll_ctl");
    }
    return joined;
  }

  int event_fd_;
  int control_fd_;
  int activity_fd_;
};

/// Sits between the wrapped endpoint's poll() and the caller's sink. Stores the first breach; poll() throws it after
/// the inner poll() has returned.
class CheckedEndpoint::Inspector final : public ArrivalSink {
 public:
  Inspector(CheckedEndpoint& endpoint, ArrivalSink& sink) : endpoint_(endpoint), sink_(sink) {}

  void arrived(int source, Tag tag) override {
    if (!may_report("arrived", source)) return;
    if (endpoint_.faults_) {
      endpoint_.faults_->add({source, tag});
    } else {
      sink_.arrived(source, tag);
    }
  }

  void on_oob(int peer, std::string_view text) override {
    if (may_report("OOB message", peer)) sink_.on_oob(peer, text);
  }

  void lost(int peer, std::string_view reason) override {
    if (!may_report("lost", peer)) return;
    if (reason.empty()) keep_breach("lost(" + rank_text(peer) + ") gives no reason");
    if (endpoint_.faults_) {
      // Delayed arrivals come first: what a peer sent before it was lost has arrived.
      for (auto const& held : endpoint_.faults_->take_all_from(peer)) sink_.arrived(held.source, held.tag);
    }
    Peer& state = endpoint_.peers_[static_cast<std::size_t>(peer)];
    state.lost = true;
    state.sources.clear();
    sink_.lost(peer, reason);
  }

  [[nodiscard]] bool reported() const { return reported_; }
  [[nodiscard]] std::string const& breach() const { return breach_; }

 private:
  bool may_report(char const* what, int peer) {
    reported_ = true;
    if (peer < 0 || peer >= endpoint_.size() || peer == endpoint_.rank()) {
      keep_breach(std::string("poll() reported ") + what + "() of " + rank_text(peer) + ", which is no peer");
      return false;
    }
    if (endpoint_.peers_[static_cast<std::size_t>(peer)].lost) {
      keep_breach(std::string("poll() reported ") + what + "() of " + rank_text(peer) + " after its loss");
      return false;
    }
    return true;
  }

  void keep_breach(std::string text) {
    if (breach_.empty()) breach_ = std::move(text);
  }

  CheckedEndpoint& endpoint_;
  ArrivalSink& sink_;
  bool reported_ = false;
  std::string breach_;
};

CheckedEndpoint::CheckedEndpoint(std::unique_ptr<Endpoint> inner, std::uint64_t fault_seed)
    : inner_(std::move(inner)),
      receive_buffer_bytes_(inner_->receive_buffer().size()),
      peers_(static_cast<std::size_t>(inner_->size())) {
  if (fault_seed == 0) return;
  // Ranks that share a seed must get different schedules.
  faults_.emplace(fault_seed * 0x9e3779b97f4a7c15u + static_cast<std::uint64_t>(inner_->rank()));
  held_signal_ = std::make_unique<HeldSignal>(*inner_);
}

CheckedEndpoint::~CheckedEndpoint() = default;

PeerTraits CheckedEndpoint::traits(int peer) const {
  expects(peer >= 0 && peer < size(), "traits(): there is no " + rank_text(peer));
  return inner_->traits(peer);
}

Status CheckedEndpoint::put(Destination const& destination, std::span<std::byte const> header,
                            std::span<std::byte const> payload, Tag tag) {
  CallGuard::Scope const scope(guard_, "put");
  throw_deferred_breach();
  check_put("put", destination, header.size(), payload.size());

  int const peer = destination.peer;
  std::uint64_t const count_before = inner_->put_count(peer);
  Status status = inner_->put(destination, header, payload, tag);
  std::uint64_t const count = inner_->put_count(peer);

  if (count != count_before + (status.ok() ? 1 : 0)) {
    throw_transport_breach("put() to " + rank_text(peer) + " took put_count() from " + std::to_string(count_before) +
                           " to " + std::to_string(count) + (status.ok() ? " on success" : " without success"));
  }
  Peer& state = peers_[static_cast<std::size_t>(peer)];
  if (status.ok() && !state.lost) state.sources.add(payload, count);
  if (settle_sources(peer) < count && inner_->traits(peer).copies_at_put) {
    throw_transport_breach("put() to " + rank_text(peer) + " kept its source, against traits()");
  }
  return status;
}

void CheckedEndpoint::prepare(Destination const& destination, std::size_t header_bytes, std::size_t payload_bytes) {
  CallGuard::Scope const scope(guard_, "prepare");
  throw_deferred_breach();
  check_put("prepare", destination, header_bytes, payload_bytes);
  inner_->prepare(destination, header_bytes, payload_bytes);
}

void CheckedEndpoint::submit() {
  CallGuard::Scope const scope(guard_, "submit");
  throw_deferred_breach();
  inner_->submit();
}

std::uint64_t CheckedEndpoint::put_count(int peer) const {
  CallGuard::Scope const scope(guard_, "put_count");
  check_peer("put_count", peer);
  return inner_->put_count(peer);
}

std::uint64_t CheckedEndpoint::flushed(int peer) const {
  CallGuard::Scope const scope(guard_, "flushed");
  check_peer("flushed", peer);
  return settle_sources(peer);
}

bool CheckedEndpoint::poll(ArrivalSink& sink) {
  CallGuard::Scope const scope(guard_, "poll");
  throw_deferred_breach();

  Inspector inspector(*this, sink);
  // A breach is stored while the transport runs and thrown here, so that no exception unwinds through its code.
  bool moved = inner_->poll(inspector);
  if (!inspector.breach().empty()) throw_transport_breach(inspector.breach());
  if (inspector.reported() && !moved) throw_transport_breach("poll() reported something and returned false");

  if (faults_) moved = deliver_due(sink) || moved;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank()) settle_sources(peer);
  }
  return moved;
}

Status CheckedEndpoint::get(int peer, std::uint64_t address, std::span<std::byte> local) {
  CallGuard::Scope const scope(guard_, "get");
  throw_deferred_breach();
  check_peer("get", peer);
  expects(inner_->traits(peer).can_get, "get(): the memory of " + rank_text(peer) + " cannot be read");
  return inner_->get(peer, address, local);
}

bool CheckedEndpoint::claim(int owner, std::uint64_t offset, std::uint64_t value) {
  CallGuard::Scope const scope(guard_, "claim");
  throw_deferred_breach();
  if (owner != rank()) check_peer("claim", owner);
  expects(owner == rank() || inner_->traits(owner).can_get, "claim(): " + rank_text(owner) + " shares no words");
  expects(offset % 8 == 0 && offset <= receive_buffer_bytes_ && sizeof value <= receive_buffer_bytes_ - offset,
          "claim(): the word is outside of the receive buffer");
  return inner_->claim(owner, offset, value);
}

void CheckedEndpoint::retract() noexcept {
  for (auto& state : peers_) state.sources.clear();  // The caller may change its payloads again.
  inner_->retract();
}

bool CheckedEndpoint::open_window(int peer, WindowId window, std::span<std::byte> memory) {
  CallGuard::Scope const scope(guard_, "open_window");
  throw_deferred_breach();
  check_peer("open_window", peer);
  expects(inner_->traits(peer).can_put_to_window, "open_window(): " + rank_text(peer) + " cannot put into windows");
  expects(window != kReceiveBuffer, "open_window(): window 0 is the receive buffer");
  expects(!windows_.contains({peer, window}),
          "open_window(): window " + std::to_string(window) + " is already open to " + rank_text(peer));
  if (!inner_->open_window(peer, window, memory)) return false;
  windows_.emplace(peer, window);
  return true;
}

void CheckedEndpoint::close_window(int peer, WindowId window) {
  CallGuard::Scope const scope(guard_, "close_window");
  throw_deferred_breach();
  check_peer("close_window", peer);
  expects(windows_.erase({peer, window}) == 1,
          "close_window(): window " + std::to_string(window) + " is not open to " + rank_text(peer));
  inner_->close_window(peer, window);
}

void CheckedEndpoint::send_oob(int peer, std::string_view text) noexcept {
  try {
    CallGuard::Scope const scope(guard_, "send_oob");
    check_peer("send_oob", peer);
  } catch (std::exception const&) {
    deferred_breach_ = "send_oob() overlapped another call, or named no peer";
    return;
  }
  inner_->send_oob(peer, text);
}

void CheckedEndpoint::keep_alive() {
  CallGuard::Scope const scope(guard_, "keep_alive");
  throw_deferred_breach();
  inner_->keep_alive();
}

void CheckedEndpoint::arm() {
  CallGuard::Scope const scope(guard_, "arm");
  throw_deferred_breach();
  inner_->arm();
}

void CheckedEndpoint::disarm() {
  CallGuard::Scope const scope(guard_, "disarm");
  throw_deferred_breach();
  inner_->disarm();
}

void CheckedEndpoint::sleep(Deadline deadline) { inner_->sleep(holds_arrivals_ ? Deadline::min() : deadline); }

int CheckedEndpoint::control_fd() const { return held_signal_ ? held_signal_->control_fd() : inner_->control_fd(); }

int CheckedEndpoint::activity_fd() const { return held_signal_ ? held_signal_->activity_fd() : inner_->activity_fd(); }

void CheckedEndpoint::check_peer(std::string const& call, int peer) const {
  expects(peer >= 0 && peer < size() && peer != rank(), std::string(call) + "(): " + rank_text(peer) +
                                                            " is not a peer of " + rank_text(rank()) + " of " +
                                                            std::to_string(size()));
}

void CheckedEndpoint::check_put(std::string const& call, Destination const& destination, std::size_t header_bytes,
                                std::size_t payload_bytes) const {
  check_peer(call, destination.peer);
  expects(header_bytes <= kMaxHeaderBytes, call + "(): a header of " + std::to_string(header_bytes) +
                                               " bytes is longer than " + std::to_string(kMaxHeaderBytes));
  if (destination.window != kReceiveBuffer) {
    expects(inner_->traits(destination.peer).can_put_to_window, call + "(): window " +
                                                                    std::to_string(destination.window) + " of " +
                                                                    rank_text(destination.peer) + " cannot be written");
    return;
  }
  expects(destination.offset % kHeaderBytes == 0,
          call + "(): offset " + std::to_string(destination.offset) + " is no multiple of 64");
  std::size_t const bytes = payload_bytes == 0 ? header_bytes : kHeaderBytes + payload_bytes;
  expects(destination.offset <= receive_buffer_bytes_ && bytes <= receive_buffer_bytes_ - destination.offset,
          call + "(): " + std::to_string(bytes) + " bytes at " + std::to_string(destination.offset) +
              " leave the receive buffer of " + rank_text(destination.peer) + " (" +
              std::to_string(receive_buffer_bytes_) + " bytes)");
}

void CheckedEndpoint::throw_deferred_breach() const {
  if (char const* text = deferred_breach_.exchange(nullptr)) throw UsageError(text);
}

void CheckedEndpoint::throw_transport_breach(std::string const& text) const {
  throw std::logic_error("transport of " + rank_text(rank()) + ": " + text);
}

// Checksums are compared before the caller learns from flushed() that a source is free.
std::uint64_t CheckedEndpoint::settle_sources(int peer) const {
  Peer& state = peers_[static_cast<std::size_t>(peer)];
  std::uint64_t const flushed = inner_->flushed(peer);
  if (flushed < state.flushed) {
    throw_transport_breach("flushed(" + rank_text(peer) + ") fell from " + std::to_string(state.flushed) + " to " +
                           std::to_string(flushed));
  }
  if (flushed > inner_->put_count(peer)) {
    throw_transport_breach("flushed(" + rank_text(peer) + ") is " + std::to_string(flushed) + " of " +
                           std::to_string(inner_->put_count(peer)) + " puts");
  }
  state.flushed = flushed;
  if (auto const changed = state.sources.settle(flushed)) {
    throw UsageError("the source of put " + std::to_string(*changed) + " to " + rank_text(peer) +
                     " was changed before it was flushed");
  }
  return flushed;
}

bool CheckedEndpoint::deliver_due(ArrivalSink& sink) {
  auto const due = faults_->take_due();
  bool const holds = !faults_->empty();
  if (holds_arrivals_.exchange(holds) != holds) {
    holds ? held_signal_->raise() : held_signal_->lower();
    if (holds) inner_->wake();  // A sleeping thread must poll until nothing is held back.
  }
  for (auto const& notification : due) sink.arrived(notification.source, notification.tag);
  return !due.empty() || holds;
}

}  // namespace headway::comm
