// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "group/group_handle.hpp"
#include "torch_headers.hpp"
#include "work/device_work.hpp"

#include <headway/comm/device_group.hpp>

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace headway::c10d_backend {

class HeadwayBackend;

/// Slots of a device group as tensors: an exchange lands in the tensor that its reader gets.
///
/// The lease of a slot ends when the last tensor on its memory is freed. The slot is then reused after the work
/// enqueued by that time on the streams that waited for the exchange, on those of Slot::record_stream(), and on the
/// current stream of the freeing thread. slot_ring.cpp explains the algorithm.
class SlotRing final {
 public:
  class Lease;

  /// Slot of one exchange. `output` is (size, capacity, ...features); output[r] is the block of rank r.
  struct Slot {
    std::uint64_t seq;  ///< Position of the exchange among those of the ring, from 0.
    at::Tensor output;
    std::shared_ptr<Lease> lease;

    /// The first `rows` rows of the block of `rank`. @throws c10::ValueError if the block has fewer.
    [[nodiscard]] at::Tensor block(std::int64_t rank, std::int64_t rows) const;
    /// The first rows[r] rows of the block of each rank r.
    [[nodiscard]] std::vector<at::Tensor> blocks(std::vector<std::int64_t> const& rows) const;
    /// Delays the reuse of the slot until `stream` has done what was enqueued when the lease ends.
    void record_stream(c10::Stream const& stream) const;
  };

  /// Collective. Blocks until all ranks of the group have created theirs.
  /// @param capacity most rows from one rank to another in one exchange
  /// @param features shape of a row
  /// @param num_slots slots that may be leased or in flight at once
  /// @param max_lag exchanges that a rank may run ahead of its peers; below `num_slots`
  SlotRing(c10::intrusive_ptr<HeadwayBackend> backend, at::Device device, std::int64_t capacity,
           std::vector<std::int64_t> features, at::ScalarType dtype, int num_slots, int max_lag);

  /// Leases the next slot. @throws ValueError that names it if it is still leased, or if the slot before was not
  /// exchanged.
  [[nodiscard]] Slot take();
  /// Sends inputs[r] to rank r and receives output_splits[r] rows from it, into the first rows of its block.
  /// inputs[rank] is ignored.
  c10::intrusive_ptr<c10d::Work> exchange(Slot const& slot, std::vector<at::Tensor> const& inputs,
                                          std::vector<std::int64_t> const& output_splits,
                                          std::chrono::milliseconds timeout);

 private:
  [[nodiscard]] std::size_t row_bytes() const;

  c10::intrusive_ptr<HeadwayBackend> backend_;
  at::Device device_;
  std::vector<std::int64_t> shape_;  ///< Shape of a slot.
  at::ScalarType dtype_;
  std::shared_ptr<GroupHandle> handle_;
  std::shared_ptr<comm::DeviceSlots> slots_;
};

}  // namespace headway::c10d_backend
