#pragma once

#include "device_work.hpp"
#include "group_handle.hpp"
#include "torch_headers.hpp"

#include <headway/comm/device_group.hpp>

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace headway::c10d_backend {

class HeadwayBackend;

/// Slots of a group as tensors: the memory that an exchange lands in is the tensor that its reader gets.
///
/// A slot's lease ends when the last tensor on its memory is freed, after what was enqueued by then on the streams that
/// waited for the exchange, on those of Slot::record_stream(), and on the current stream of the thread that frees it.
class SlotRing final {
 public:
  class Lease;

  /// One exchange: `output` is (size, capacity, ...features), block r of rank r.
  struct Slot {
    std::uint64_t number;
    at::Tensor output;
    std::shared_ptr<Lease> lease;

    /// The first rows of a rank's block. @throws c10::ValueError if it has not so many.
    [[nodiscard]] at::Tensor block(std::int64_t rank, std::int64_t rows) const;
    /// The first rows of each rank's.
    [[nodiscard]] std::vector<at::Tensor> blocks(std::vector<std::int64_t> const& rows) const;
    void record_stream(c10::Stream const& stream) const;
  };

  /// Collective: blocks until all ranks of the backend's group make theirs.
  SlotRing(c10::intrusive_ptr<HeadwayBackend> backend, at::Device device, std::int64_t capacity,
           std::vector<std::int64_t> features, at::ScalarType dtype, int num_slots, int max_lag);

  [[nodiscard]] Slot take();
  /// Sends inputs[r] to rank r, whose rows land in the first rows of its block; inputs[rank] is ignored.
  c10::intrusive_ptr<c10d::Work> exchange(Slot const& slot, std::vector<at::Tensor> const& inputs,
                                          std::vector<std::int64_t> const& output_splits,
                                          std::chrono::milliseconds timeout);

 private:
  [[nodiscard]] std::size_t row_bytes() const;

  c10::intrusive_ptr<HeadwayBackend> backend_;
  at::Device device_;
  std::vector<std::int64_t> shape_;  ///< Of a slot.
  at::ScalarType dtype_;
  std::shared_ptr<GroupHandle> handle_;
  std::shared_ptr<comm::DeviceSlots> slots_;
};

}  // namespace headway::c10d_backend
