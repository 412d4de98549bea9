// SPDX-License-Identifier: Apache-2.0

// Exchanges of CUDA tensors without a local copy: the receive slot itself is the output tensor.
//
// Idea: a ring of slots in device memory that peers map. take() leases the next slot and wraps it as a tensor, whose
// deleter ends the lease. The caller may write its own block there in place; exchange() lets peers write theirs. The
// reader uses the tensor, and freeing it returns the slot.
//
// Example: num_slots = 2, max_lag = 0 (no rank runs ahead of its peers). Exchange 0 uses slot 0, exchange 1 slot 1.
// Exchange 2 needs slot 0 again: take() succeeds if every tensor on it was freed. The current stream then waits for the
// streams that read it. If a tensor is still alive (autograd may have saved it), take() throws and names operation 0.
//
// Invariants:
// - The lease, not the tensor object, owns the slot: views share the storage, so the deleter runs after the last of
//   them.
// - A running exchange does not hold the slot's tensor. Its work refers to the lease weakly, so the exchange does not
//   prolong the lease; the slot is free only after both.
// - Reuse is stream-ordered: no host waits for a device when a tensor is freed.
// - A rank never sends from memory that peers write in the same exchange (expects_disjoint).
// Complexity: take() and the end of a lease are O(leases * streams), without allocation of device memory.
// Source: docs/design/cuda_streams.md.

#include "backend/slot_ring.hpp"

#include "backend/headway_backend.hpp"
#include "runtime/errors.hpp"
#include "runtime/interpreter.hpp"
#include "tensors/memory_overlap.hpp"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

namespace headway::c10d_backend {

namespace {

/// Unit of a rank's part of a slot, in bytes; comm::DeviceSlotsOptions::block_bytes demands it.
constexpr std::size_t kBlockUnit = 512;

}  // namespace

/// Lease of one slot: collects the streams that use the slot, and returns the slot to the ring after them.
class SlotRing::Lease final {
 public:
  Lease(std::shared_ptr<GroupHandle> handle, std::shared_ptr<comm::DeviceSlots> slots, std::uint64_t seq,
        at::Device device)
      : handle_(std::move(handle)), slots_(std::move(slots)), seq_(seq), device_(device) {}

  void add_stream(c10::Stream const& stream) {
    std::lock_guard const lock(mutex_);
    auto* const handle = stream.native_handle();
    if (std::ranges::find(streams_, handle) == streams_.end()) streams_.push_back(handle);
  }

  /// Ends the lease. Called when the last tensor on the slot is freed.
  void end() noexcept {
    if (handle_->is_inherited()) return;  // A forked child has no use of the device.
    try {
      add_stream(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
      ReleasedGil const released;  // Another thread may be enqueuing.
      slots_->release(seq_, streams_);
    } catch (std::exception const& error) {
      TORCH_WARN("headway: the slot of exchange ", seq_, " cannot be given back: ", error.what());
    }
  }

 private:
  std::shared_ptr<GroupHandle> handle_;  ///< Keeps the group alive, which the slots need.
  std::shared_ptr<comm::DeviceSlots> slots_;
  std::uint64_t seq_;
  at::Device device_;
  std::mutex mutex_;  ///< Guards streams_.
  std::vector<comm::DeviceStream> streams_;
};

namespace {

/// Throws if a rank sends from memory that peers write in the same exchange. The rank's own part of the slot is not
/// checked: no peer writes it.
void expects_disjoint(SlotRing::Slot const& slot, std::vector<std::span<std::byte const>> const& sends,
                      std::size_t own_rank) {
  auto const memory = bytes_of(slot.output);
  auto const block_bytes = memory.size() / sends.size();
  BlockMap blocks;
  for (std::size_t peer = 0; peer < sends.size(); ++peer) {
    if (peer == own_rank) continue;
    blocks.write(memory.subspan(peer * block_bytes, block_bytes), static_cast<int>(peer));
    blocks.read(sends[peer], static_cast<int>(peer));
  }
  blocks.expect_disjoint("the exchange of a slot");
}

}  // namespace

at::Tensor SlotRing::Slot::block(std::int64_t rank, std::int64_t rows) const {
  TORCH_CHECK_VALUE(rows >= 0 && rows <= output.size(1), "headway: a block of a slot has ", output.size(1),
                    " rows, not ", rows);
  return output.select(0, rank).narrow(0, 0, rows);
}

std::vector<at::Tensor> SlotRing::Slot::blocks(std::vector<std::int64_t> const& rows) const {
  std::vector<at::Tensor> blocks;
  for (std::size_t rank = 0; rank < rows.size(); ++rank) {
    blocks.push_back(block(static_cast<std::int64_t>(rank), rows[rank]));
  }
  return blocks;
}

void SlotRing::Slot::record_stream(c10::Stream const& stream) const { lease->add_stream(stream); }

SlotRing::SlotRing(c10::intrusive_ptr<HeadwayBackend> backend, at::Device device, std::int64_t capacity,
                   std::vector<std::int64_t> features, at::ScalarType dtype, int num_slots, int max_lag)
    : backend_(std::move(backend)), device_(device), dtype_(dtype), handle_(backend_->handle()) {
  TORCH_CHECK_VALUE(device.is_cuda() && device.has_index(), "headway: slots are on a CUDA device, not on ", device);
  TORCH_CHECK_VALUE(capacity > 0, "headway: the capacity of slots must be above 0, not ", capacity);
  shape_ = {backend_->getSize(), capacity};
  shape_.insert(shape_.end(), features.begin(), features.end());
  std::size_t const block_bytes = row_bytes() * static_cast<std::size_t>(capacity);
  TORCH_CHECK_VALUE(block_bytes > 0 && block_bytes % kBlockUnit == 0, "headway: a rank's part of a slot, ", capacity,
                    " rows of ", row_bytes(), " bytes, must be a multiple of ", kBlockUnit, " bytes");
  auto made = translate_errors("slots", [&] {
    return handle_->device_group(device_.index())
        .make_slots({.block_bytes = block_bytes, .num_slots = num_slots, .max_lag = max_lag});
  });
  slots_ = std::shared_ptr<comm::DeviceSlots>(made.release(), [handle = handle_](comm::DeviceSlots* slots) {
    if (handle->is_inherited()) return;
    ReleasedGil const released;  // Waits for the device.
    delete slots;
  });
}

std::size_t SlotRing::row_bytes() const {
  auto const count = std::accumulate(shape_.begin() + 2, shape_.end(), std::int64_t{1}, std::multiplies<>());
  return static_cast<std::size_t>(count) * c10::elementSize(dtype_);
}

SlotRing::Slot SlotRing::take() {
  handle_->release_completed();
  auto const stream = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
  auto const taken = translate_errors("slots", [&] { return slots_->take(stream.native_handle()); });
  auto const lease = std::make_shared<Lease>(handle_, slots_, taken.seq, device_);
  auto output = at::from_blob(
      taken.memory.data(), shape_, [lease](void*) { lease->end(); }, at::TensorOptions(dtype_).device(device_),
      device_);
  return {.seq = taken.seq, .output = std::move(output), .lease = lease};
}

c10::intrusive_ptr<c10d::Work> SlotRing::exchange(Slot const& slot, std::vector<at::Tensor> const& inputs,
                                                  std::vector<std::int64_t> const& output_splits,
                                                  std::chrono::milliseconds timeout) {
  auto const size = static_cast<std::size_t>(backend_->getSize());
  auto const rank = static_cast<std::size_t>(backend_->getRank());
  TORCH_CHECK_VALUE(inputs.size() == size && output_splits.size() == size,
                    "headway: an exchange of slots needs one input and one split for each of the ", size,
                    " ranks, not ", inputs.size(), " and ", output_splits.size());
  WorkTensors tensors;
  // The slot's own tensor is not held: the lease outlasts the exchange on the device anyway.
  tensors.set_device(device_);
  std::vector<std::span<std::byte const>> sends(size);
  std::vector<std::size_t> received_bytes(size);
  for (std::size_t peer = 0; peer < size; ++peer) {
    TORCH_CHECK_VALUE(output_splits[peer] >= 0, "headway: the split for rank ", peer,
                      " is negative: ", output_splits[peer]);
    TORCH_CHECK_VALUE(output_splits[peer] <= shape_[1], "headway: the split for rank ", peer, " is ",
                      output_splits[peer], ", and slots have ", shape_[1], " rows for each rank");
    received_bytes[peer] = static_cast<std::size_t>(output_splits[peer]) * row_bytes();
    if (peer == rank) continue;
    TORCH_CHECK_TYPE(inputs[peer].scalar_type() == dtype_, "headway: slots of ", dtype_, " cannot take rows of ",
                     inputs[peer].scalar_type());
    TORCH_CHECK_VALUE(inputs[peer].dim() + 1 == static_cast<std::int64_t>(shape_.size()) &&
                          inputs[peer].sizes().slice(1) == at::IntArrayRef(shape_).slice(2),
                      "headway: slots of shape ", at::IntArrayRef(shape_), " cannot take rows of a tensor of shape ",
                      inputs[peer].sizes());
    sends[peer] = tensors.source(inputs[peer]);
  }
  expects_disjoint(slot, sends, rank);
  auto const work = backend_->launch_in_slots(std::move(tensors), inputs, timeout, [&](comm::DeviceCall const& call) {
    return slots_->all_to_all_v(slot.seq, sends, received_bytes, static_cast<comm::DataType>(dtype_), call);
  });
  // Called with each stream that waits for the exchange. It must not hold the slot's tensor, which would keep the slot
  // leased.
  work->on_join([weak = std::weak_ptr(slot.lease)](c10::Stream const& stream) {
    if (auto const lease = weak.lock()) lease->add_stream(stream);
  });
  return work;
}

}  // namespace headway::c10d_backend
