// SPDX-License-Identifier: Apache-2.0

// Deduplication of CUDA tensors for Python. Output tensors have room for all keys of the batch to be unique, as only
// the device knows how many there are; narrow() shortens them once the host knows.
//
// Example: ids 7 9 7. The output has room for 3 ids: 7 9 and one undefined. inverse_indices is 0 1 0, size_on_device
// is 2. Whoever calls narrow(2) gets ids 7 9. A lookup may follow before that, with size_on_device as its number of
// valid keys.
//
// Memory: each call allocates its outputs from torch's caching allocator, whose blocks are reused in stream order, so
// a call costs no cudaMalloc() once the first batches have run.

#include "devices.hpp"
#include "headway/base/status.hpp"
#include "headway/embedding/cuda_deduplicator.hpp"
#include "headway/embedding/routing.hpp"
#include "tensor_deduplicator.hpp"

#include <string>

namespace headway::embedding {

namespace {

/// CudaDeduplicator on CUDA tensors. All calls are stream-ordered on torch's current stream, and none waits.
class DeviceDeduplicator final : public TensorDeduplicator {
 public:
  explicit DeviceDeduplicator(at::Device device)
      : device_(device), deduplicator_(make_cuda_deduplicator(place_of(device))) {}

  UniqueTensors deduplicate(KeyTensors const& keys) override {
    auto unique = room_for(keys, true);
    deduplicator_->deduplicate(keys.view(device_), view_of(unique));
    return unique;
  }

  UniqueTensors from_unique(KeyTensors const& keys) override {
    auto unique = room_for(keys, keys.are_unique);
    deduplicator_->from_unique(keys.view(device_), view_of(unique));
    // Without num_known all ids are valid, and the host knows their number.
    return keys.num_known ? unique : unique.narrow(keys.ids.numel());
  }

  UniqueTensors reorder(UniqueTensors const& unique, at::Tensor const& order) override {
    base::expects(order.numel() == unique.num_rows(), "not one place in the order for each unique key");
    auto reordered = room_for(unique.room, unique.room.are_unique);
    reordered.size = unique.size;
    deduplicator_->reorder(view_of(unique), span_of<std::uint32_t>(order, at::kInt, device_, "order"),
                           view_of(reordered));
    return reordered;
  }

  at::Tensor expand(UniqueTensors const& unique, BagTensors const& bags, at::Tensor const& values) override {
    expect_rows(unique, values);
    auto const dim = width_of(values);
    auto const num_bags = bags.offsets ? bags.offsets->numel() - 1 : unique.inverse_indices.numel();
    base::expects(num_bags >= 0, "offsets of bags must begin with 0");
    auto out = empty({num_bags, dim}, at::kFloat, device_);
    deduplicator_->expand(view_of(unique), bags.view(device_), static_cast<std::size_t>(dim),
                          floats_of(values, device_, "values"), span_of<float>(out, at::kFloat, device_, "out"));
    return out;
  }

  at::Tensor reduce(UniqueTensors const& unique, BagTensors const& bags, at::Tensor const& values) override {
    auto const dim = width_of(values);
    auto sums = empty({unique.num_rows(), dim}, at::kFloat, device_);
    deduplicator_->reduce(view_of(unique), bags.view(device_), static_cast<std::size_t>(dim),
                          floats_of(values, device_, "values"), span_of<float>(sums, at::kFloat, device_, "sums"));
    return sums;
  }

  std::pair<at::Tensor, at::Tensor> route(KeyTensors const& keys, std::uint32_t num_ranks) override {
    base::expects(num_ranks <= kNumVirtualBuckets,
                  "keys cannot be divided among " + std::to_string(num_ranks) + " ranks");
    std::pair result{empty(keys.ids.numel(), at::kInt, device_), empty(num_ranks, at::kLong, device_)};
    deduplicator_->route(keys.view(device_), span_of<std::uint32_t>(result.first, at::kInt, device_, "order"),
                         span_of<std::int64_t>(result.second, at::kLong, device_, "counts"));
    return result;
  }

 private:
  /// Uninitialised tensors for the unique keys of `keys`. UniqueTensors::room holds their ids, tables and counts.
  [[nodiscard]] UniqueTensors room_for(KeyTensors const& keys, bool are_unique) const {
    auto const num_keys = keys.ids.numel();
    auto const words = [&](std::int64_t size) { return empty(size, at::kInt, device_); };
    std::optional<at::Tensor> tables;
    if (keys.tables) tables = words(num_keys);
    return {.room = {empty(num_keys, at::kLong, device_), tables, keys.table, words(num_keys), are_unique},
            .size = std::nullopt,
            .inverse_indices = words(num_keys),
            .csr_indices = words(num_keys),
            .csr_offsets = words(num_keys + 1),
            .size_on_device = words(1)};
  }

  [[nodiscard]] CudaUniqueKeys view_of(UniqueTensors const& unique) const {
    base::expects(unique.on_host == nullptr, "unique keys on the CPU are not on " + device_.str());
    auto const words = [&](at::Tensor const& tensor, char const* name) {
      return span_of<std::uint32_t>(tensor, at::kInt, device_, name);
    };
    auto const& room = unique.room;
    return {.ids = span_of<std::uint64_t>(room.ids, at::kLong, device_, "unique ids"),
            .tables = room.tables ? words(*room.tables, "unique tables") : std::span<std::uint32_t>(),
            .table = room.table,
            .counts = words(*room.counts, "unique counts"),
            .inverse_indices = words(unique.inverse_indices, "inverse_indices"),
            .csr_indices = words(unique.csr_indices, "csr_indices"),
            .csr_offsets = words(unique.csr_offsets, "csr_offsets"),
            .size = words(unique.size_on_device, "size").data()};
  }

  static void expect_rows(UniqueTensors const& unique, at::Tensor const& values) {
    base::expects(values.dim() == 2 && values.size(0) == unique.num_rows(),
                  "values must have a row for each of " + std::to_string(unique.num_rows()) + " unique keys");
  }

  at::Device device_;
  std::unique_ptr<CudaDeduplicator> deduplicator_;
};

}  // namespace

std::unique_ptr<TensorDeduplicator> make_device_deduplicator(at::Device device) {
  return std::make_unique<DeviceDeduplicator>(device);
}

}  // namespace headway::embedding
