#include "devices.hpp"
#include "headway/comm/status.hpp"
#include "headway/embedding/cuda_deduplicator.hpp"
#include "headway/embedding/routing.hpp"
#include "tensor_deduplicator.hpp"

#include <string>

namespace headway::embedding {

namespace {

/// CudaDeduplicator on CUDA tensors. Outputs have room for all keys of the batch to be unique; nothing waits.
class DeviceDeduplicator final : public TensorDeduplicator {
 public:
  explicit DeviceDeduplicator(at::Device device)
      : device_(device), deduplicator_(make_cuda_deduplicator(place_of(device))) {}

  UniqueTensors deduplicate(KeyTensors const& keys) override {
    auto unique = room_for(keys, true);
    deduplicator_->deduplicate(keys.view(device_), view_of(unique));
    return unique;
  }

  UniqueTensors take_as_unique(KeyTensors const& keys) override {
    auto unique = room_for(keys, keys.are_unique);
    deduplicator_->take_as_unique(keys.view(device_), view_of(unique));
    return keys.num_known ? unique : unique.narrow(keys.ids.numel());
  }

  UniqueTensors reorder(UniqueTensors const& unique, at::Tensor const& order) override {
    comm::expects(order.numel() == unique.num_rows(), "not one place in the order for each unique key");
    auto reordered = room_for(unique.room, unique.room.are_unique);
    reordered.size = unique.size;
    deduplicator_->reorder(view_of(unique), span_of<std::uint32_t>(order, at::kInt, device_, "order"),
                           view_of(reordered));
    return reordered;
  }

  at::Tensor hand_out(UniqueTensors const& unique, BagTensors const& bags, at::Tensor const& values) override {
    expect_rows(unique, values);
    auto const dim = width_of(values);
    auto const num_bags = bags.offsets ? bags.offsets->numel() - 1 : unique.numbers.numel();
    comm::expects(num_bags >= 0, "offsets of bags must begin with 0");
    auto out = empty({num_bags, dim}, at::kFloat, device_);
    deduplicator_->hand_out(view_of(unique), bags.view(device_), static_cast<std::size_t>(dim),
                            floats_of(values, device_, "values"), span_of<float>(out, at::kFloat, device_, "out"));
    return out;
  }

  at::Tensor add_up(UniqueTensors const& unique, BagTensors const& bags, at::Tensor const& values) override {
    auto const dim = width_of(values);
    auto sums = empty({unique.num_rows(), dim}, at::kFloat, device_);
    deduplicator_->add_up(view_of(unique), bags.view(device_), static_cast<std::size_t>(dim),
                          floats_of(values, device_, "values"), span_of<float>(sums, at::kFloat, device_, "sums"));
    return sums;
  }

  std::pair<at::Tensor, at::Tensor> route(KeyTensors const& keys, std::uint32_t num_ranks) override {
    comm::expects(num_ranks <= kNumVirtualBuckets,
                  "keys cannot be divided among " + std::to_string(num_ranks) + " ranks");
    std::pair result{empty(keys.ids.numel(), at::kInt, device_), empty(num_ranks, at::kLong, device_)};
    deduplicator_->route(keys.view(device_), span_of<std::uint32_t>(result.first, at::kInt, device_, "order"),
                         span_of<std::int64_t>(result.second, at::kLong, device_, "counts"));
    return result;
  }

 private:
  /// Uninitialised tensors for the unique keys of `keys`.
  [[nodiscard]] UniqueTensors room_for(KeyTensors const& keys, bool are_unique) const {
    auto const num_keys = keys.ids.numel();
    auto const words = [&](std::int64_t size) { return empty(size, at::kInt, device_); };
    std::optional<at::Tensor> tables;
    if (keys.tables) tables = words(num_keys);
    return {.room = {empty(num_keys, at::kLong, device_), tables, keys.table, words(num_keys), are_unique},
            .size = std::nullopt,
            .numbers = words(num_keys),
            .members = words(num_keys),
            .begins = words(num_keys + 1),
            .size_on_device = words(1)};
  }

  [[nodiscard]] CudaUniqueKeys view_of(UniqueTensors const& unique) const {
    comm::expects(unique.on_host == nullptr, "unique keys on the CPU are not on " + device_.str());
    auto const words = [&](at::Tensor const& tensor, char const* name) {
      return span_of<std::uint32_t>(tensor, at::kInt, device_, name);
    };
    auto const& room = unique.room;
    return {.ids = span_of<std::uint64_t>(room.ids, at::kLong, device_, "unique ids"),
            .tables = room.tables ? words(*room.tables, "unique tables") : std::span<std::uint32_t>(),
            .table = room.table,
            .counts = words(*room.counts, "unique counts"),
            .numbers = words(unique.numbers, "numbers"),
            .members = words(unique.members, "members"),
            .begins = words(unique.begins, "begins"),
            .size = words(unique.size_on_device, "size").data()};
  }

  static void expect_rows(UniqueTensors const& unique, at::Tensor const& values) {
    comm::expects(values.dim() == 2 && values.size(0) == unique.num_rows(),
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
