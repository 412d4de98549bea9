// SPDX-License-Identifier: Apache-2.0

// Thread that sends and receives fragments of GPU memory between hosts; host_proxy.hpp explains the protocol. A lane is
// one direction of a channel to one peer.

#include "device/peer_copy/host_proxy.hpp"

#include "headway/comm/status.hpp"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <utility>

namespace headway::comm::peer_copy {

namespace {

/// Match number of the first channel; above all tags that torch allows. One number per channel.
constexpr std::uint64_t kFirstMatch = std::uint64_t{1} << 40;
/// Polls without pause for this long after the last progress, then with kPause: streams may have much work before they
/// need data.
constexpr auto kEagerTime = std::chrono::microseconds(200);
constexpr auto kPause = std::chrono::microseconds(20);

}  // namespace

HostProxy::HostProxy(Group& group) : group_(group), thread_([this] { run(); }) {}

HostProxy::~HostProxy() {
  {
    std::lock_guard const lock(mutex_);
    stops_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void HostProxy::add(std::shared_ptr<RemoteMemory const> memory, Direction direction, Message const& message) {
  {
    std::lock_guard const lock(mutex_);
    added_.push_back({direction, std::move(memory), message});
  }
  changed_.notify_all();
}

bool HostProxy::is_idle() const {
  return std::ranges::all_of(
      lanes_, [](auto const& each) { return each.second.waiting.empty() && each.second.posted.empty(); });
}

void HostProxy::run() noexcept {
  try {
    drive();
  } catch (OperationError const&) {  // The group has failed already.
  } catch (std::exception const& error) {
    group_.admin().abort(std::string("between hosts: ") + error.what());
  }
}

void HostProxy::drive() {
  // Round robin over the lanes, one step of each: a lane that waits for its peer does not hold up the others.
  for (auto moved_at = Clock::now(); take_added();) {
    bool has_moved = false;
    for (auto& [direction, lane] : lanes_) {
      has_moved = post(direction, lane) || has_moved;
      has_moved = complete(direction, lane) || has_moved;
    }
    auto const now = Clock::now();
    if (has_moved) {
      moved_at = now;
    } else if (!group_.monitor().health().ok()) {
      return;
    } else if (now - moved_at < kEagerTime) {
      ::sched_yield();
    } else {
      std::this_thread::sleep_for(kPause);
    }
  }
}

bool HostProxy::take_added() {
  std::unique_lock lock(mutex_);
  if (is_idle()) changed_.wait(lock, [this] { return stops_ || !added_.empty(); });
  if (is_idle() && added_.empty()) return false;
  for (auto& [direction, memory, message] : added_) {
    auto& lane = lanes_[direction];
    lane.memory = std::move(memory);
    lane.waiting.push_back(message);
  }
  added_.clear();
  return true;
}

bool HostProxy::post(Direction const& direction, Lane& lane) {
  bool has_moved = false;
  for (; !lane.waiting.empty(); has_moved = true) {
    if (!lane.is_announced) announce(direction, lane);
    // A fragment of a size that differs from the sender's would fail the group with a poorer message.
    if (!direction.is_send && !lane.is_agreed) break;
    auto const& message = lane.waiting.front();
    auto const fragment = message.first_fragment + lane.num_posted;
    auto const& stream = lane.memory->stream_sync_words(direction.channel);
    bool const may_go = direction.is_send ? stream.arrived.load(std::memory_order_acquire) > fragment
                                          : fragment < stream.consumed.load(std::memory_order_acquire) +
                                                           lane.memory->layout.of(direction.channel).num_slots;
    if (!may_go) break;
    post_fragment(direction, lane);
    if (++lane.num_posted < message.num_fragments) continue;
    lane.waiting.pop_front();
    lane.num_posted = 0;
    lane.is_announced = false;
  }
  return has_moved;
}

void HostProxy::announce(Direction const& direction, Lane& lane) {
  Posted posted{.operation = nullptr, .own = std::make_unique<MessageDescriptor>(lane.waiting.front().descriptor)};
  if (!direction.is_send) posted.peers = std::make_unique<MessageDescriptor>();
  auto& said = direction.is_send ? *posted.own : *posted.peers;
  posted.operation = start(direction, std::as_writable_bytes(std::span(&said, 1)), 0);
  lane.posted.push_back(std::move(posted));
  lane.is_announced = true;
  lane.is_agreed = false;
}

void HostProxy::post_fragment(Direction const& direction, Lane& lane) {
  auto const& message = lane.waiting.front();
  auto const fragment = message.first_fragment + lane.num_posted;
  auto const part = lane.memory->layout.of(direction.channel)
                        .part(message.descriptor.size_bytes, message.num_fragments, lane.num_posted);
  auto* const bytes = lane.memory->fragment(!direction.is_send, direction.channel, fragment, message.is_staged);
  lane.posted.push_back(
      {.operation = start(direction, {bytes, part.num_bytes}, message.descriptor.data_type), .fragment = fragment});
}

OperationPtr HostProxy::start(Direction const& direction, std::span<std::byte> bytes, DataType type) {
  auto const match = kFirstMatch + static_cast<std::uint64_t>(direction.channel);
  return direction.is_send ? group_.send(bytes, direction.peer, match, type)
                           : group_.receive(bytes, direction.peer, match, type);
}

bool HostProxy::complete(Direction const& direction, Lane& lane) {
  bool has_moved = false;
  auto& sync_words = lane.memory->sync_words(direction.channel);
  for (; !lane.posted.empty() && group_.test(*lane.posted.front().operation); has_moved = true) {
    auto const& done = lane.posted.front();
    if (auto status = done.operation->status(); !status.ok()) throw OperationError(std::move(status));
    if (done.peers && *done.peers != *done.own) {
      group_.admin().abort(
          disagreement(group_.options().data_type_name, direction.peer, *done.peers, group_.rank(), *done.own));
      throw OperationError(group_.monitor().health());
    }
    if (done.peers) lane.is_agreed = true;
    if (done.fragment) {
      // Release: a stream or CPU that reads the count also sees the bytes before it.
      (direction.is_send ? sync_words.consumed : sync_words.arrived)
          .store(*done.fragment + 1, std::memory_order_release);
    }
    lane.posted.pop_front();
  }
  return has_moved;
}

}  // namespace headway::comm::peer_copy
