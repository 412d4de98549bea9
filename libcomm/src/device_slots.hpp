#pragma once

#include "device_group_impl.hpp"

#include <deque>
#include <memory>
#include <span>
#include <vector>

namespace headway::comm {

/// A channel of a device group whose slots hold the blocks of all ranks side by side. The end of a lease is what tells
/// the peers that a slot is free.
class DeviceSlotsImpl final : public DeviceSlots {
 public:
  /// Meets all peers. The caller holds the group's mutex.
  DeviceSlotsImpl(DeviceGroupImpl& group, DeviceSlotsOptions const& options);
  ~DeviceSlotsImpl() override;

  Slot take(DeviceStream stream) override;
  DeviceOperationPtr all_to_all_v(std::uint64_t number, std::span<std::span<std::byte const> const> sends,
                                  std::span<std::size_t const> received_bytes, DataType type,
                                  DeviceCall const& call) override;
  void release(std::uint64_t number, std::span<DeviceStream const> streams) override;

 private:
  struct Lease {
    std::shared_ptr<CUevent_st> completion{};  ///< Of the operation, once it has started.
    std::vector<DeviceStream> streams{};       ///< That used it, once it is over.
    bool is_over = false, is_free = false;     ///< The second as soon as no stream that used it is captured in a graph.
  };

  [[nodiscard]] std::uint64_t num_taken() const { return num_freed_ + leases_.size(); }
  /// Frees slots whose leases are over, and tells peers so. A stream that is being captured cannot be waited for: its
  /// slots are left to a later call.
  void free_slots();
  [[nodiscard]] bool is_captured(DeviceStream stream) const;

  DeviceGroupImpl& group_;
  DeviceSlotsOptions options_;
  DeviceGroupImpl::LinkSet links_;
  DeviceGroupImpl::Channel& channel_;
  // Guarded by the group's mutex.
  std::uint64_t num_freed_ = 0;  ///< All before are free.
  std::deque<Lease> leases_;     ///< From num_freed_ on.
  /// (num_slots) When all streams that used a slot are done with it; null: none has.
  std::vector<std::shared_ptr<CUevent_st>> free_from_;
};

}  // namespace headway::comm
