#pragma once

#include "device_group_impl.hpp"

#include <deque>
#include <memory>
#include <span>
#include <vector>

namespace headway::comm {

/// Slots of a device group: a channel whose slots hold the blocks of all ranks side by side. The end of a lease tells
/// the peers that the slot is free.
class DeviceSlotsImpl final : public DeviceSlots {
 public:
  /// Meets all peers. The caller holds the device group's mutex.
  DeviceSlotsImpl(DeviceGroupImpl& group, DeviceSlotsOptions const& options);
  ~DeviceSlotsImpl() override;

  Slot take(DeviceStream stream) override;
  DeviceOperationPtr all_to_all_v(std::uint64_t number, std::span<std::span<std::byte const> const> sends,
                                  std::span<std::size_t const> received_bytes, DataType type,
                                  DeviceCall const& call) override;
  void release(std::uint64_t number, std::span<DeviceStream const> streams) override;

 private:
  /// A slot that was taken and is not freed yet.
  struct Lease {
    std::shared_ptr<CUevent_st> completion{};  ///< Completion of its operation; null: not started.
    std::vector<DeviceStream> streams{};       ///< Streams that used the slot, known when the lease is over.
    /// is_free: the lease is over, and no stream that used the slot is being captured into a graph.
    bool is_over = false, is_free = false;
  };

  /// Number of slots taken so far: number of the next one.
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
