#include "engines/nvlink/introductions.hpp"

#include "headway/comm/status.hpp"
#include "rendezvous/random.hpp"

#include <algorithm>
#include <cstring>
#include <thread>
#include <type_traits>
#include <utility>

namespace headway::comm::nvlink {

namespace {

constexpr auto kLookInterval = std::chrono::microseconds(100);

static_assert(std::is_trivially_copyable_v<Hello>);

/// The text up to its first zero byte, or all of it.
template <std::size_t kSize>
std::string text_of(std::array<char, kSize> const& text) {
  return {text.data(), ::strnlen(text.data(), kSize)};
}

}  // namespace

std::string Introductions::greeting(int peer, Hello own) {
  own.nonce = random_bytes<sizeof(Nonce)>();
  mailbox_.expect(own.nonce);
  mailbox_.name().copy(own.mailbox.data(), own.mailbox.size() - 1);
  std::lock_guard const lock(mutex_);
  acquaintances_[{own.set, peer}].own_nonce = own.nonce;
  return {reinterpret_cast<char const*>(&own), sizeof own};
}

void Introductions::heard(int peer, std::string_view text) {
  Hello hello;
  expects(text.size() == sizeof hello,
          "rank " + std::to_string(peer) + " introduces itself with " + std::to_string(text.size()) + " bytes");
  std::memcpy(&hello, text.data(), sizeof hello);
  std::lock_guard const lock(mutex_);
  auto& acquaintance = acquaintances_[{hello.set, peer}];
  acquaintance.hello = hello;
  acquaintance.is_settled = false;  // A peer that sends a new hello has nothing of before.
  send(peer, acquaintance);
}

void Introductions::offer(int set, int peer, std::array<int, 2> descriptors) {
  std::lock_guard const lock(mutex_);
  auto& acquaintance = acquaintances_[{set, peer}];
  acquaintance.offered = descriptors;
  send(peer, acquaintance);
}

void Introductions::send(int peer, Acquaintance& acquaintance) {
  if (!acquaintance.hello || !acquaintance.offered || acquaintance.is_settled) return;
  auto const& hello = *acquaintance.hello;
  auto const delivery = mailbox_.send(text_of(hello.mailbox), hello.nonce, *acquaintance.offered, peer);
  acquaintance.is_settled = delivery != Delivery::kFull;  // The group itself detects a peer that is gone.
  has_unsent_ = has_unsent_ || !acquaintance.is_settled;
}

void Introductions::send_again() noexcept {
  std::lock_guard const lock(mutex_);
  if (!std::exchange(has_unsent_, false)) return;
  for (auto& [key, acquaintance] : acquaintances_) {
    try {
      send(key.second, acquaintance);
    } catch (SystemError const&) {  // Lack of resources on this host. They may be there next time.
      has_unsent_ = true;
    }
  }
}

Hello Introductions::await_hello(int set, int peer, Deadline deadline, Look const& look) {
  for (;;) {
    {
      std::lock_guard const lock(mutex_);
      if (auto const& hello = acquaintances_[{set, peer}].hello) return *hello;
    }
    if (Clock::now() > deadline) {
      throw SystemError("rank " + std::to_string(peer) + " has not used its device in this group in time");
    }
    look();
    std::this_thread::sleep_for(kLookInterval);
  }
}

std::array<FileDescriptor, 2> Introductions::await_descriptors(int set, int peer, Deadline deadline, Look const& look) {
  return mailbox_.receive(own_nonce(set, peer), deadline, peer, [&] {
    send_again();
    look();
  });
}

bool Introductions::add(int set, int peer, int descriptor) {
  std::lock_guard const lock(mutex_);
  auto const& acquaintance = acquaintances_[{set, peer}];
  if (!acquaintance.hello || !acquaintance.offered || !acquaintance.is_settled) return false;
  auto const& hello = *acquaintance.hello;
  // Every message carries two descriptors.
  return mailbox_.send(text_of(hello.mailbox), hello.nonce, {descriptor, descriptor}, peer) == Delivery::kDone;
}

FileDescriptor Introductions::await_added(int set, int peer, Deadline deadline) {
  return std::move(mailbox_.receive(own_nonce(set, peer), deadline, peer, [] {})[0]);
}

Nonce Introductions::own_nonce(int set, int peer) {
  std::lock_guard const lock(mutex_);
  return acquaintances_[{set, peer}].own_nonce;
}

void Introductions::await_room(int set, Deadline deadline, Look const& look) {
  auto const is_waiting = [&](auto const& each) {
    auto const& [key, acquaintance] = each;
    return key.first == set && acquaintance.hello && acquaintance.offered && !acquaintance.is_settled;
  };
  for (;;) {
    send_again();
    {
      std::lock_guard const lock(mutex_);
      if (std::ranges::none_of(acquaintances_, is_waiting)) return;
    }
    if (Clock::now() > deadline) throw SystemError("a peer did not take descriptors of CUDA memory in time");
    look();
    std::this_thread::sleep_for(kLookInterval);
  }
}

void Introductions::forget(int set) {
  std::lock_guard const lock(mutex_);
  std::erase_if(acquaintances_, [&](auto const& each) {
    bool const is_of_set = each.first.first == set;
    if (is_of_set) mailbox_.forget(each.second.own_nonce);
    return is_of_set;
  });
}

}  // namespace headway::comm::nvlink
