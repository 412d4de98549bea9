// SPDX-License-Identifier: Apache-2.0

// Slots of a device group: exchanges whose received blocks stay in a slot until the caller's lease of it is over.
// device_slots.hpp has the idea, an example and the invariants.

#include "device/device_slots.hpp"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace headway::comm {

namespace {

/// block_bytes must be a multiple of this.
constexpr std::size_t kBlockUnit = 512;

}  // namespace

std::unique_ptr<DeviceSlots> DeviceGroupImpl::make_slots(DeviceSlotsOptions const& options) {
  expects(options.block_bytes > 0 && options.block_bytes % kBlockUnit == 0,
          "block_bytes of slots must be a multiple of 512, not " + std::to_string(options.block_bytes));
  expects(options.max_lag >= 0 && options.num_slots > options.max_lag,
          "slots need a max_lag from 0 and below num_slots: not " + std::to_string(options.max_lag) + " and " +
              std::to_string(options.num_slots));
  std::lock_guard const lock(mutex_);
  throw_if_failed();
  return std::make_unique<DeviceSlotsImpl>(*this, options);
}

DeviceSlotsImpl::DeviceSlotsImpl(DeviceGroupImpl& group, DeviceSlotsOptions const& options)
    : group_(group),
      options_(options),
      links_{.index = group.num_link_sets_,
             .layout = peer_copy::LinkLayout::of_shared_slots(
                 options.block_bytes, static_cast<std::uint64_t>(options.num_slots), group.size_)},
      channel_(group.channels_.emplace_back()),
      free_from_(static_cast<std::size_t>(options.num_slots)) {
  auto credits = std::make_unique<peer_copy::Stream>(group.context_);
  links_.segment = std::make_shared<peer_copy::SharedSegment>(group.context_, links_.layout.device_bytes);
  ++group.num_link_sets_;
  group.meet_all(links_);
  group.stats_.receive_buffer_bytes += links_.layout.device_bytes;
  channel_.credits = std::move(credits);
  channel_.set = &links_;
  channel_.max_lag_limit = static_cast<std::size_t>(options.max_lag);
}

DeviceSlotsImpl::~DeviceSlotsImpl() {
  group_.drain(&channel_);
  std::lock_guard const lock(group_.mutex_);
  group_.forget_links(links_);
  group_.stats_.receive_buffer_bytes -= links_.layout.device_bytes;
  channel_.senders.clear();
  channel_.receivers.clear();
  channel_.credits.reset();
  channel_.completions.clear();
}

DeviceSlots::Slot DeviceSlotsImpl::take(DeviceStream stream) {
  std::lock_guard const lock(group_.mutex_);
  group_.throw_if_failed();
  peer_copy::ContextScope const scope(*group_.context_);
  free_slots();
  auto const num_slots = free_from_.size();
  std::uint64_t const seq = num_taken();
  if (leases_.size() == num_slots) {
    throw UsageError("slot " + std::to_string(seq % num_slots) + " is still leased by operation " +
                     std::to_string(num_freed_) + ", and operation " + std::to_string(seq) +
                     " needs it: free the tensors that use it, or make more slots");
  }
  if (!leases_.empty() && leases_.back().completion == nullptr) {
    throw UsageError("slots: operation " + std::to_string(seq - 1) +
                     " has not started: exchange its slot, or free it, before another is taken");
  }
  // Peers are held back by their own wait for `consumed`. This wait is for the caller, who fills the block of its own
  // rank.
  if (auto const& free = free_from_[seq % num_slots]; free != nullptr) {
    group_.after_event(static_cast<CUstream>(stream), free.get());
  }
  auto const& layout = links_.layout.channels.front();
  auto* const memory = reinterpret_cast<std::byte*>(links_.segment->memory.address() + layout.slot_offset(seq));
  leases_.emplace_back();
  return {.seq = seq, .memory = {memory, layout.slot_stride}};
}

DeviceOperationPtr DeviceSlotsImpl::all_to_all_v(std::uint64_t seq, std::span<std::span<std::byte const> const> sends,
                                                 std::span<std::size_t const> received_bytes, DataType type,
                                                 DeviceCall const& call) {
  std::lock_guard const lock(group_.mutex_);
  group_.expect_one_for_each(sends.size(), "slots");
  group_.expect_one_for_each(received_bytes.size(), "slots");
  if (seq < num_freed_ || seq >= num_taken()) {
    throw UsageError("slots: the slot of operation " + std::to_string(seq) + " is not taken");
  }
  if (seq != channel_.num_operations) {
    throw UsageError("slots: operation " + std::to_string(channel_.num_operations) + " comes before " +
                     std::to_string(seq));
  }
  group_.new_exchange(Verb::kAllToAll, channel_, type, seq);
  group_.exchange_.is_in_slots = true;
  for (int step = 1; step < group_.size_; ++step) {
    int const to = (group_.rank_ + step) % group_.size_, from = (group_.rank_ + group_.size_ - step) % group_.size_;
    auto const& block = sends[static_cast<std::size_t>(to)];
    std::size_t const expected = received_bytes[static_cast<std::size_t>(from)];
    auto const most = std::max(block.size(), expected);
    if (most > options_.block_bytes) {
      throw UsageError("slots: a block of " + std::to_string(most) + " bytes does not fit, they hold " +
                       std::to_string(options_.block_bytes));
    }
    group_.add_send(block, to);
    // A received block has no output: it stays in the slot.
    group_.add_receive({static_cast<std::byte*>(nullptr), expected}, from);
  }
  auto operation = group_.start(options_.max_lag, call);
  leases_[seq - num_freed_].completion = static_cast<DeviceOperationImpl&>(*operation).completion();
  return operation;
}

void DeviceSlotsImpl::release(std::uint64_t seq, std::span<DeviceStream const> streams) {
  std::lock_guard const lock(group_.mutex_);
  if (seq < num_freed_ || seq >= num_taken() || leases_[seq - num_freed_].is_over) {
    throw UsageError("slots: operation " + std::to_string(seq) + " has no lease");
  }
  auto& lease = leases_[seq - num_freed_];
  lease.streams.assign(streams.begin(), streams.end());
  lease.is_over = true;
  peer_copy::ContextScope const scope(*group_.context_);
  free_slots();
}

void DeviceSlotsImpl::free_slots() {
  CUstream const credits = channel_.credits->get();
  for (std::uint64_t seq = num_freed_; auto& lease : leases_) {
    auto& free_from = free_from_[seq++ % free_from_.size()];
    if (!lease.is_over || lease.is_free) continue;
    if (std::ranges::any_of(lease.streams, [this](auto each) { return is_captured(each); })) continue;
    if (lease.completion != nullptr) group_.after_event(credits, lease.completion.get());
    for (DeviceStream const stream : lease.streams) group_.after_stream(credits, static_cast<CUstream>(stream));
    free_from = group_.events_->record(credits);
    lease.is_free = true;
  }
  // A slot that was released without an exchange, always the last one: its number is used again, and peers hear
  // nothing.
  if (!leases_.empty() && leases_.back().is_free && leases_.back().completion == nullptr) leases_.pop_back();
  auto const num_freed = num_freed_;
  for (; !leases_.empty() && leases_.front().is_free; leases_.pop_front()) ++num_freed_;
  if (num_freed_ == num_freed) return;
  for (auto const& link : links_.links) {
    if (link != nullptr) group_.words_.write(link->peer_word(0, &peer_copy::SyncWords::consumed), num_freed_);
  }
  group_.words_.enqueue(credits);
}

bool DeviceSlotsImpl::is_captured(DeviceStream stream) const {
  CUstreamCaptureStatus status{};
  auto const result = group_.context_->call().stream_is_capturing(static_cast<CUstream>(stream), &status);
  // While another stream is captured, the legacy default stream refuses the query, and cannot be waited for.
  return result != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

}  // namespace headway::comm
