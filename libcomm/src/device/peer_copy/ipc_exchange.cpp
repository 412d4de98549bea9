// SPDX-License-Identifier: Apache-2.0

// Sends descriptors of this rank's memory to the peers on this host; ipc_exchange.hpp has the interface.
//
// The order of two events is open: a peer's hello arrives, and this rank has descriptors for it. Whichever comes
// second sends them. Both take mutex_, so exactly one of them is second.
//
// A mailbox may be full, because the kernel queues only a few datagrams and limits the descriptors in flight. Then
// the descriptors stay here and send_again() tries later; every loop that waits calls it, so two ranks that wait for
// each other's descriptors still deliver their own.

#include "device/peer_copy/ipc_exchange.hpp"

#include "headway/comm/status.hpp"
#include "system/random.hpp"

#include <algorithm>
#include <cstring>
#include <thread>
#include <type_traits>
#include <utility>

namespace headway::comm::peer_copy {

namespace {

/// Time between two looks for a hello or for room in a mailbox.
constexpr auto kPollInterval = std::chrono::microseconds(100);

static_assert(std::is_trivially_copyable_v<Hello>);

/// The text up to its first zero byte, or all of it.
template <std::size_t kSize>
std::string text_of(std::array<char, kSize> const& text) {
  return {text.data(), ::strnlen(text.data(), kSize)};
}

}  // namespace

// The nonce is drawn for this peer and this set alone: whoever sends descriptors with it has read the hello.
std::string IpcExchange::greeting(int peer, Hello own) {
  own.nonce = random_bytes<sizeof(Nonce)>();
  mailbox_.expect(own.nonce);
  mailbox_.name().copy(own.mailbox.data(), own.mailbox.size() - 1);
  std::lock_guard const lock(mutex_);
  peers_[{own.set, peer}].own_nonce = own.nonce;
  return {reinterpret_cast<char const*>(&own), sizeof own};
}

void IpcExchange::on_oob(int peer, std::string_view text) {
  Hello hello;
  expects(text.size() == sizeof hello,
          "rank " + std::to_string(peer) + " sent a hello of " + std::to_string(text.size()) + " bytes");
  std::memcpy(&hello, text.data(), sizeof hello);
  std::lock_guard const lock(mutex_);
  auto& state = peers_[{hello.set, peer}];
  state.hello = hello;
  state.is_settled = false;  // A peer that sends a new hello has nothing of before.
  send(peer, state);
}

void IpcExchange::send_descriptors(int set, int peer, std::array<int, 2> descriptors) {
  std::lock_guard const lock(mutex_);
  auto& state = peers_[{set, peer}];
  state.descriptors = descriptors;
  send(peer, state);
}

void IpcExchange::send(int peer, PeerState& state) {
  if (!state.hello || !state.descriptors || state.is_settled) return;
  auto const& hello = *state.hello;
  auto const delivery = mailbox_.send(text_of(hello.mailbox), hello.nonce, *state.descriptors, peer);
  state.is_settled = delivery != Delivery::kFull;  // The group itself detects a peer that is gone.
  has_unsent_ = has_unsent_ || !state.is_settled;
}

void IpcExchange::send_again() noexcept {
  std::lock_guard const lock(mutex_);
  if (!std::exchange(has_unsent_, false)) return;
  for (auto& [key, state] : peers_) {
    try {
      send(key.second, state);
    } catch (SystemError const&) {  // Lack of resources on this host. They may be there next time.
      has_unsent_ = true;
    }
  }
}

Hello IpcExchange::await_hello(int set, int peer, Deadline deadline, WhileWaiting const& while_waiting) {
  for (;;) {
    {
      std::lock_guard const lock(mutex_);
      if (auto const& hello = peers_[{set, peer}].hello) return *hello;
    }
    if (Clock::now() > deadline) {
      throw SystemError("rank " + std::to_string(peer) + " has not used its device in this group in time");
    }
    while_waiting();
    std::this_thread::sleep_for(kPollInterval);
  }
}

std::array<base::FileDescriptor, 2> IpcExchange::await_descriptors(int set, int peer, Deadline deadline,
                                                                   WhileWaiting const& while_waiting) {
  return mailbox_.receive(own_nonce(set, peer), deadline, peer, [&] {
    send_again();
    while_waiting();
  });
}

bool IpcExchange::add(int set, int peer, int descriptor) {
  std::lock_guard const lock(mutex_);
  auto const& state = peers_[{set, peer}];
  if (!state.hello || !state.descriptors || !state.is_settled) return false;
  auto const& hello = *state.hello;
  // Every message carries two descriptors.
  return mailbox_.send(text_of(hello.mailbox), hello.nonce, {descriptor, descriptor}, peer) == Delivery::kDone;
}

base::FileDescriptor IpcExchange::await_added(int set, int peer, Deadline deadline) {
  return std::move(mailbox_.receive(own_nonce(set, peer), deadline, peer, [] {})[0]);
}

Nonce IpcExchange::own_nonce(int set, int peer) {
  std::lock_guard const lock(mutex_);
  return peers_[{set, peer}].own_nonce;
}

void IpcExchange::await_room(int set, Deadline deadline, WhileWaiting const& while_waiting) {
  auto const is_waiting = [&](auto const& each) {
    auto const& [key, state] = each;
    return key.first == set && state.hello && state.descriptors && !state.is_settled;
  };
  for (;;) {
    send_again();
    {
      std::lock_guard const lock(mutex_);
      if (std::ranges::none_of(peers_, is_waiting)) return;
    }
    if (Clock::now() > deadline) throw SystemError("a peer did not take descriptors of CUDA memory in time");
    while_waiting();
    std::this_thread::sleep_for(kPollInterval);
  }
}

void IpcExchange::forget(int set) {
  std::lock_guard const lock(mutex_);
  std::erase_if(peers_, [&](auto const& each) {
    bool const is_of_set = each.first.first == set;
    if (is_of_set) mailbox_.forget(each.second.own_nonce);
    return is_of_set;
  });
}

}  // namespace headway::comm::peer_copy
