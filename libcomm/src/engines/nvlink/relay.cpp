#include "engines/nvlink/relay.hpp"

#include "headway/comm/status.hpp"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <utility>

namespace headway::comm::nvlink {

namespace {

/// Above all that torch's tags may be; one for each channel.
constexpr std::uint64_t kFirstMatch = std::uint64_t{1} << 40;
/// Looks in a row for so long, and then from time to time: streams may have much to do before they need anything.
constexpr auto kEagerTime = std::chrono::microseconds(200);
constexpr auto kPause = std::chrono::microseconds(20);

}  // namespace

Relay::Relay(Group& group) : group_(group), thread_([this] { run(); }) {}

Relay::~Relay() {
  {
    std::lock_guard const lock(mutex_);
    stops_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Relay::add(std::shared_ptr<RemoteMemory const> memory, int peer, int channel, bool is_send,
                Fragment const& fragment) {
  {
    std::lock_guard const lock(mutex_);
    added_.push_back({{peer, channel, is_send}, std::move(memory), fragment});
  }
  changed_.notify_all();
}

bool Relay::is_idle() const {
  return std::ranges::all_of(
      lanes_, [](auto const& each) { return each.second.waiting.empty() && each.second.posted.empty(); });
}

void Relay::run() noexcept {
  try {
    relay();
  } catch (OperationError const&) {  // The group has failed.
  } catch (std::exception const& error) {
    group_.abort(std::string("between hosts: ") + error.what());
  }
}

void Relay::relay() {
  for (auto moved_at = Clock::now(); take_added();) {
    bool has_moved = false;
    for (auto& [key, lane] : lanes_) has_moved = step(key, lane) || has_moved;
    auto const now = Clock::now();
    if (has_moved) {
      moved_at = now;
    } else if (!group_.health().ok()) {
      return;
    } else if (now - moved_at < kEagerTime) {
      ::sched_yield();
    } else {
      std::this_thread::sleep_for(kPause);
    }
  }
}

bool Relay::take_added() {
  std::unique_lock lock(mutex_);
  if (is_idle()) changed_.wait(lock, [this] { return stops_ || !added_.empty(); });
  if (is_idle() && added_.empty()) return false;
  for (auto& [key, memory, fragment] : added_) {
    auto& lane = lanes_[key];
    lane.memory = std::move(memory);
    lane.waiting.push_back(fragment);
  }
  added_.clear();
  return true;
}

bool Relay::step(Key const& key, Lane& lane) {
  bool has_moved = false;
  for (; !lane.waiting.empty() && may_post(key, lane); lane.waiting.pop_front(), has_moved = true) {
    lane.posted.push_back({lane.waiting.front().number, post(key, lane, lane.waiting.front())});
  }
  auto const [peer, channel, is_send] = key;
  auto& board = lane.memory->board(channel);
  for (; !lane.posted.empty() && group_.test(*lane.posted.front().operation); lane.posted.pop_front()) {
    if (auto status = lane.posted.front().operation->status(); !status.ok()) throw OperationError(std::move(status));
    (is_send ? board.consumed : board.arrived).store(lane.posted.front().number + 1, std::memory_order_release);
    has_moved = true;
  }
  return has_moved;
}

bool Relay::may_post(Key const& key, Lane const& lane) {
  auto const [peer, channel, is_send] = key;
  auto const& stream = lane.memory->stream_board(channel);
  auto const number = lane.waiting.front().number;
  if (is_send) return stream.arrived.load(std::memory_order_acquire) > number;
  return number < stream.consumed.load(std::memory_order_acquire) + lane.memory->layout.of(channel).num_slots;
}

OperationPtr Relay::post(Key const& key, Lane const& lane, Fragment const& fragment) {
  auto const [peer, channel, is_send] = key;
  std::span const bytes(lane.memory->fragment(!is_send, channel, fragment.number, fragment.is_staged),
                        fragment.num_bytes);
  auto const match = kFirstMatch + static_cast<std::uint64_t>(channel);
  return is_send ? group_.send(bytes, peer, match, fragment.data_type)
                 : group_.receive(bytes, peer, match, fragment.data_type);
}

}  // namespace headway::comm::nvlink
