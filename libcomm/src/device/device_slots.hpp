// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/device_group_impl.hpp"

#include <deque>
#include <memory>
#include <span>
#include <vector>

namespace headway::comm {

/// Slots of a device group: a channel whose slots hold the blocks of all ranks side by side. The end of a lease tells
/// the peers that the slot is free.
///
/// Idea: the output of an exchange stays in the slot where it arrived, so no copy inside the device is needed. In
/// return the caller says when it has finished with the slot, and only then may peers write into it again.
///
/// Example: num_slots = 2 and max_lag = 1. take() leases slot 0 (operation 0) and slot 1 (operation 1). A third take()
/// throws until the lease of operation 0 is over. release(0) makes the credit stream (Channel::credits) wait for the
/// streams that read slot 0, then write consumed = 1 to every peer. A peer that starts operation 2 waits for that word,
/// since operation 2 uses slot 0 again.
///
/// Invariants:
/// - Slots are freed towards peers in order: `consumed` counts operations, so a slot that is released early waits for
///   those before it.
/// - take() and release() never wait on the host. All waits for slots are between streams.
/// - Only the slot that was taken last may be given back without an exchange, and its number is used again.
class DeviceSlotsImpl final : public DeviceSlots {
 public:
  /// Meets all peers. The caller holds the device group's mutex.
  DeviceSlotsImpl(DeviceGroupImpl& group, DeviceSlotsOptions const& options);
  ~DeviceSlotsImpl() override;

  Slot take(DeviceStream stream) override;
  DeviceOperationPtr all_to_all_v(std::uint64_t seq, std::span<std::span<std::byte const> const> sends,
                                  std::span<std::size_t const> received_bytes, DataType type,
                                  DeviceCall const& call) override;
  void release(std::uint64_t seq, std::span<DeviceStream const> streams) override;

 private:
  /// A slot that was taken and is not freed yet.
  struct Lease {
    std::shared_ptr<CUevent_st> completion{};  ///< Completion of its operation; null: not started.
    std::vector<DeviceStream> streams{};       ///< Streams that used the slot, known when the lease is over.
    /// is_free: the lease is over, and no stream that used the slot is being captured into a graph.
    bool is_over = false, is_free = false;
  };

  /// Number of slots taken so far: sequence number of the next one.
  [[nodiscard]] std::uint64_t num_taken() const { return num_freed_ + leases_.size(); }
  /// Frees slots whose leases are over, and tells the peers. Slots used by a stream that is being captured are left to
  /// a later call, since such a stream cannot be waited for.
  void free_slots();
  [[nodiscard]] bool is_captured(DeviceStream stream) const;

  DeviceGroupImpl& group_;
  DeviceSlotsOptions options_;
  DeviceGroupImpl::LinkSet links_;
  DeviceGroupImpl::Channel& channel_;
  // The members below are guarded by the device group's mutex.
  std::uint64_t num_freed_ = 0;  ///< All slots before this one are free.
  std::deque<Lease> leases_;     ///< Leases of slots from num_freed_ on.
  /// (num_slots) Event after all work that used a slot; null: the slot was never used.
  std::vector<std::shared_ptr<CUevent_st>> free_from_;
};

}  // namespace headway::comm
