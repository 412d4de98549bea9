// SPDX-License-Identifier: Apache-2.0

// The life of a device group, its reports to the group, and the list of blocks that each collective consists of.
//
// Idea: every collective is a list of blocks to send and a list of blocks to receive, at most one of each per peer.
// These lists are built here; device_start.cpp agrees on them with the peers, and device_enqueue.cpp puts them on
// streams. There are no trees or rings of ranks: every device reaches every other, so each block goes straight to its
// receiver.
//
// Example: broadcast from rank 1 of four ranks. Rank 1 sends the block to 2, 3 and 0; each other rank has one block to
// receive and none to send.
//
// Invariants:
// - All ranks start the operations of a channel in the same order, so an operation's number identifies it everywhere.
// - An all-to-all lists its peers from the next rank on: in step s, rank r sends to r + s and receives from r - s
//   (modulo size). So no two ranks send to the same receiver in one step.
// - The waits of the streams are released only after the failure is stored: whoever passes a wait can see why.
// Complexity: O(size) on the host for each collective, whatever the number of bytes.

#include "device/device_group_impl.hpp"

#include "headway/base/log.hpp"

#include <algorithm>
#include <string>
#include <thread>
#include <utility>

namespace headway::comm {

using peer_copy::kStageBytes;

namespace {

/// Slots of collectives and of messages: enough to overlap copies into and out of slots.
constexpr std::size_t kCollectiveSlotBytes = std::size_t{4} << 20;
constexpr std::uint64_t kCollectiveSlots = 8;
/// Between hosts a slot is pinned host memory. Small fragments overlap on the three legs: device to host, network, host
/// to device.
constexpr std::size_t kRemoteSlotBytes = std::size_t{1} << 20;
/// Longest wait for streams after a failure.
constexpr auto kDrainTime = std::chrono::seconds(10);
/// Time after a failure until waits for outputs are released. kLossTime: a peer that has not reported its failure by
/// then is lost. kOutputTime: the streams of a peer that has failed have ended by then.
constexpr auto kLossTime = std::chrono::seconds(2), kOutputTime = std::chrono::seconds(8);
constexpr auto kDrainPoll = std::chrono::microseconds(200);

}  // namespace

std::unique_ptr<DeviceGroup> DeviceGroup::make(Group& group, DeviceOptions const& options) {
  return std::make_unique<DeviceGroupImpl>(group, options);
}

DeviceGroupImpl::DeviceGroupImpl(Group& group, DeviceOptions const& options)
    : group_(group),
      options_(options),
      rank_(group.rank()),
      size_(group.size()),
      context_(peer_copy::Context::open(options.ordinal)),
      links_{.index = 0, .layout = {}},
      events_(std::make_shared<peer_copy::EventPool>(context_)),
      words_(*context_),
      copies_(*context_),
      exported_memory_(context_, ipc_exchange_, links_.index),
      flight_recorder_(group.options().flight_records, size_) {
  expects(options_.slot_bytes >= kStageBytes, "slot_bytes of a device must be at least " + std::to_string(kStageBytes));
  // With k = max_lag_limit: a rank that starts operation t holds all data of t - k - 1, so its peers completed
  // t - 2(k + 1). Twice 2(k + 1) slots let blocks of two fragments lag. Peers report only every kCreditStep fragments,
  // so that many more slots are needed.
  auto const ring_slots = 4 * (static_cast<std::uint64_t>(group.options().max_lag_limit) + 1) + peer_copy::kCreditStep;
  int const num_rings = group.options().num_channels;
  for (int i = 0; i < num_rings + 2; ++i) {
    bool const is_ring = i < num_rings;  // An all-to-all channel. After these: the collectives, the messages.
    auto const slot_bytes = is_ring ? options_.slot_bytes : kCollectiveSlotBytes;
    auto const num_slots = is_ring ? ring_slots : kCollectiveSlots;
    links_.layout.add_channel(slot_bytes, num_slots);
    links_.remote_layout.add_channel(std::min(slot_bytes, kRemoteSlotBytes), num_slots);
    channels_.push_back(
        {.set = &links_, .index = i, .max_lag_limit = static_cast<std::size_t>(group.options().max_lag_limit)});
  }
  // The segment is made with a descriptor, since links share such segments. This one is for the own rank only.
  base::FileDescriptor unused;
  own_stages_ = peer_copy::HostSegment::create(context_, channels_.size() * kStageBytes, unused);
  run_bootstrap(links_);
  // Last: from here on the group may call this object from other threads.
  group_.admin().attach(*this);
}

DeviceGroupImpl::~DeviceGroupImpl() {
  drain(nullptr);
  proxy_.reset();  // Waits until everything that streams handed to it is sent.
  group_.admin().detach(*this);
}

bool DeviceGroupImpl::is_idle(Channel const* channel) noexcept {
  auto const is_done = [](auto const& stream) { return stream == nullptr || stream->is_idle(); };
  std::lock_guard const lock(mutex_);
  return std::ranges::all_of(channels_, [&](auto const& each) {
    if (channel != nullptr && channel != &each) return true;
    return std::ranges::all_of(each.senders, is_done) && std::ranges::all_of(each.receivers, is_done) &&
           is_done(each.credits);
  });
}

void DeviceGroupImpl::drain(Channel const* channel) noexcept {
  for (Deadline deadline = Deadline::max(); !is_idle(channel) && Clock::now() < deadline;) {
    // Without a failure there is no limit: pending operations have time limits of their own, and these fail the group.
    if (has_failed() && deadline == Deadline::max()) deadline = Clock::now() + kDrainTime;
    if (has_failed()) group_failed(failure_->status);
    std::this_thread::sleep_for(kDrainPoll);
  }
}

void DeviceGroupImpl::throw_if_failed() const {
  if (has_failed()) throw OperationError(failure_->status);
}

void DeviceGroupImpl::refuse_capture(CUstream stream) const {
  CUstreamCaptureStatus status{};
  context_->check(context_->call().stream_is_capturing(stream, &status), "cuStreamIsCapturing");
  expects(status == CU_STREAM_CAPTURE_STATUS_NONE,
          "an exchange cannot be captured in a CUDA graph: the words that its streams wait for count up, and a replay "
          "would wait for the same counts again");
}

DeviceStats DeviceGroupImpl::stats() {
  std::lock_guard const lock(mutex_);
  auto stats = stats_;
  stats.mapped_bytes = exported_memory_.mapped_bytes();
  return stats;
}

// GroupObserver: called by the group.

bool DeviceGroupImpl::is_late(Clock::time_point now) {
  std::lock_guard const lock(watch_mutex_);
  forget_completed();
  ipc_exchange_.send_again();
  return std::ranges::any_of(pending_, [&](auto const& each) { return each->is_late(now) && !each->has_all(); });
}

bool DeviceGroupImpl::needs(int peer) {
  std::lock_guard const lock(watch_mutex_);
  return std::ranges::any_of(pending_, [&](auto const& each) { return each->needs(peer); });
}

std::string DeviceGroupImpl::describe_missing() {
  std::lock_guard const lock(watch_mutex_);
  forget_completed();
  auto const found = std::ranges::find_if(pending_, [](auto const& each) { return !each->has_all(); });
  return found == pending_.end() ? "" : (*found)->describe_missing();
}

void DeviceGroupImpl::on_oob(int peer, std::string_view text) {
  if (peer_copy::ExportedMemory::is_for_us(text)) {
    exported_memory_.on_oob(peer, text);
  } else {
    ipc_exchange_.on_oob(peer, text);
  }
}

void DeviceGroupImpl::group_failed(Status const& failure) noexcept {
  std::lock_guard const lock(watch_mutex_);
  if (!has_failed()) {
    failed_at_ = Clock::now();
    failure_->status = failure;
    // Streams of peers may still write to memory that was exported to them: quarantine it before the failure shows.
    if (exported_memory_.has_exported()) {
      peer_copy::SharedMemory::of_process().quarantine();
      base::log(base::LogLevel::kWarning, "device", rank_,
                "device memory that peers had mapped is quarantined: it stays allocated and is not used again");
    }
    failure_->is_set.store(true, std::memory_order_release);  // Before any wait is released.
    keep_failed_records();
    pending_.clear();
  }
  // The group calls this function again from time to time. A write that was in flight may have overwritten a released
  // word, so every call releases all of them once more.
  auto const age = Clock::now() - failed_at_;
  for (auto const& each : met_) {
    each->release_waits();
    if (age > (each->peer_has_failed() ? kOutputTime : kLossTime)) each->release_outputs();
  }
}

void DeviceGroupImpl::keep_failed_records() {
  if (!flight_recorder_.is_on()) return;
  auto const clock = flight_recorder_.read_clock();
  for (auto const& each : pending_) {
    failed_records_.push_back(each->flight_record(FlightState::kFailed, clock));
    failed_records_.back().completed = clock.time();
  }
}

void DeviceGroupImpl::append_flights(FlightClock::Reading const& clock, std::vector<FlightRecord>& records) {
  std::lock_guard const lock(watch_mutex_);
  forget_completed();
  flight_recorder_.append_completed(clock, records);
  records.insert(records.end(), failed_records_.begin(), failed_records_.end());
  for (auto const& each : pending_) records.push_back(each->flight_record(FlightState::kPosted, clock));
}

void DeviceGroupImpl::forget_completed() {
  for (; !pending_.empty() && pending_.front()->has_all(); pending_.pop_front()) {
    if (flight_recorder_.is_on()) flight_recorder_.complete(pending_.front()->flight());
  }
}

// The blocks of each call.

void DeviceGroupImpl::new_exchange(Verb verb, Channel& channel, DataType type, std::uint64_t match, int peer) {
  exchange_.verb = verb;
  exchange_.channel = &channel;
  exchange_.type = type;
  exchange_.match = match;
  exchange_.peer = peer;
  exchange_.is_in_slots = false;
  exchange_.sends.clear();
  exchange_.receives.clear();
  exchange_.own_source = {};
  exchange_.own_output = {};
}

void DeviceGroupImpl::add_send(std::span<std::byte const> block, int peer) {
  if (peer == rank_) {
    exchange_.own_source = block;
  } else {
    exchange_.sends.push_back({.peer = peer, .address = peer_copy::address_of(block), .num_bytes = block.size()});
  }
}

void DeviceGroupImpl::add_receive(std::span<std::byte> block, int peer) {
  if (peer == rank_) {
    exchange_.own_output = block;
  } else {
    exchange_.receives.push_back({.peer = peer, .address = peer_copy::address_of(block), .num_bytes = block.size()});
  }
}

void DeviceGroupImpl::expect_one_for_each(std::size_t count, char const* what) const {
  if (count == static_cast<std::size_t>(size_)) return;
  throw UsageError(std::string(what) + ": one block for each of the " + std::to_string(size_) +
                   " ranks is needed, not " + std::to_string(count));
}

void DeviceGroupImpl::expect_peer(int peer, char const* what) const {
  if (peer >= 0 && peer < size_ && peer != rank_) return;
  throw UsageError(std::string(what) + ": rank " + std::to_string(peer) + " is not another rank");
}

void DeviceGroupImpl::expect_root(int root, char const* what) const {
  if (root >= 0 && root < size_) return;
  throw UsageError(std::string(what) + ": the group has no rank " + std::to_string(root));
}

DeviceOperationPtr DeviceGroupImpl::all_to_all_v(AllToAllArgs const& args, DeviceCall const& call) {
  int const max_lag = group_.admin().max_lag(args.channel);
  expect_one_for_each(args.sends.size(), "all_to_all_v");
  expect_one_for_each(args.receives.size(), "all_to_all_v");
  expects(args.received_bytes.empty(), "all_to_all_v: blocks on devices cannot be capacities (received_bytes)");
  std::lock_guard const lock(mutex_);
  auto& channel = channel_at(args.channel);
  new_exchange(Verb::kAllToAll, channel, args.data_type, channel.num_operations);
  for (int step = 0; step < size_; ++step) {  // Ranks start with different peers.
    int const to = (rank_ + step) % size_, from = (rank_ + size_ - step) % size_;
    add_send(args.sends[static_cast<std::size_t>(to)], to);
    add_receive(args.receives[static_cast<std::size_t>(from)], from);
  }
  return start(max_lag, call);
}

DeviceOperationPtr DeviceGroupImpl::broadcast(std::span<std::byte> block, int root, DataType type,
                                              DeviceCall const& call) {
  expect_root(root, "broadcast");
  std::lock_guard const lock(mutex_);
  new_collective(Verb::kBroadcast, type, root);
  for (int step = 1; step < size_; ++step) {
    if (rank_ == root) add_send(block, (rank_ + step) % size_);
  }
  if (rank_ != root) add_receive(block, root);
  return start(0, call);
}

DeviceOperationPtr DeviceGroupImpl::gather(std::span<std::byte const> block,
                                           std::span<std::span<std::byte> const> receives, int root, DataType type,
                                           DeviceCall const& call) {
  expect_root(root, "gather");
  if (rank_ == root) expect_one_for_each(receives.size(), "gather");
  std::lock_guard const lock(mutex_);
  new_collective(Verb::kGather, type, root);
  add_send(block, root);
  for (int peer = 0; rank_ == root && peer < size_; ++peer) add_receive(receives[static_cast<std::size_t>(peer)], peer);
  return start(0, call);
}

DeviceOperationPtr DeviceGroupImpl::scatter(std::span<std::span<std::byte const> const> sends,
                                            std::span<std::byte> block, int root, DataType type,
                                            DeviceCall const& call) {
  expect_root(root, "scatter");
  if (rank_ == root) expect_one_for_each(sends.size(), "scatter");
  std::lock_guard const lock(mutex_);
  new_collective(Verb::kScatter, type, root);
  for (int peer = 0; rank_ == root && peer < size_; ++peer) add_send(sends[static_cast<std::size_t>(peer)], peer);
  add_receive(block, root);
  return start(0, call);
}

DeviceOperationPtr DeviceGroupImpl::all_gather(std::span<std::byte const> block,
                                               std::span<std::span<std::byte> const> receives, DataType type,
                                               DeviceCall const& call) {
  expect_one_for_each(receives.size(), "all_gather");
  std::lock_guard const lock(mutex_);
  new_collective(Verb::kAllGather, type);
  for (int step = 0; step < size_; ++step) {
    int const to = (rank_ + step) % size_, from = (rank_ + size_ - step) % size_;
    add_send(block, to);
    add_receive(receives[static_cast<std::size_t>(from)], from);
  }
  return start(0, call);
}

DeviceOperationPtr DeviceGroupImpl::send(std::span<std::byte const> block, int peer, std::uint64_t match, DataType type,
                                         DeviceCall const& call) {
  expect_peer(peer, "send");
  std::lock_guard const lock(mutex_);
  new_exchange(Verb::kSend, messages(), type, match, peer);
  add_send(block, peer);
  return start(std::nullopt, call);
}

DeviceOperationPtr DeviceGroupImpl::receive(std::span<std::byte> block, int peer, std::uint64_t match, DataType type,
                                            DeviceCall const& call) {
  expect_peer(peer, "receive");
  std::lock_guard const lock(mutex_);
  new_exchange(Verb::kSend, messages(), type, match, peer);
  add_receive(block, peer);
  return start(std::nullopt, call);
}

}  // namespace headway::comm
