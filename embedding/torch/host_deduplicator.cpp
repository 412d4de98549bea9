// SPDX-License-Identifier: Apache-2.0

// Deduplication of CPU tensors for Python. The results of the C++ deduplicator are vectors; tensors share their
// memory and keep them alive, so nothing is copied.
//
// Ownership: one UniqueKeys object on the heap owns all vectors of a batch. Each tensor that views one of them holds
// a reference to the whole object, so a caller may keep any of the tensors and drop the others.

#include "headway/base/status.hpp"
#include "headway/embedding/routing.hpp"
#include "tensor_deduplicator.hpp"

namespace headway::embedding {

namespace {

at::Device const kHost(at::kCPU);

/// Tensors that share the memory of `the_unique`, without a copy. `room` is the storage for unique keys. On the CPU
/// their number is known, so it holds exactly these.
/// @param are_unique no key of the result repeats
UniqueTensors tensors_of(UniqueKeys the_unique, KeyTensors const& keys, bool are_unique) {
  auto unique = std::make_shared<UniqueKeys const>(std::move(the_unique));
  std::optional<at::Tensor> tables;
  if (keys.tables) tables = view_of(unique->tables, unique, at::kInt);
  return {.room = {view_of(unique->ids, unique, at::kLong), tables, unique->table,
                   view_of(unique->counts, unique, at::kInt), are_unique},
          .size = static_cast<std::int64_t>(unique->size()),
          .inverse_indices = view_of(unique->inverse_indices, unique, at::kInt),
          .on_host = unique};
}

/// The unique keys behind tensors. @throws base::UsageError if they are on a CUDA device
UniqueKeys const& on_host(UniqueTensors const& unique) {
  base::expects(unique.on_host != nullptr, "unique keys on " + unique.room.device().str() + " are not on the CPU");
  return *unique.on_host;
}

/// Deduplicator on CPU tensors.
class HostDeduplicator final : public TensorDeduplicator {
 public:
  explicit HostDeduplicator(std::shared_ptr<base::ThreadPool> thread_pool)
      : deduplicator_(make_cpu_deduplicator(std::move(thread_pool))) {}

  UniqueTensors deduplicate(KeyTensors const& keys) override {
    return tensors_of(deduplicator_->deduplicate(keys.view(kHost)), keys, true);
  }

  UniqueTensors from_unique(KeyTensors const& keys) override {
    return tensors_of(embedding::from_unique(keys.view(kHost)), keys, keys.are_unique);
  }

  UniqueTensors reorder(UniqueTensors const& unique, at::Tensor const& order) override {
    auto const new_order = span_of<std::uint32_t>(order, at::kInt, kHost, "order");
    return tensors_of(embedding::reorder(on_host(unique), new_order), unique.room, unique.room.are_unique);
  }

  at::Tensor expand(UniqueTensors const& unique, BagTensors const& bags, at::Tensor const& values) override {
    auto const view = bags.view(kHost);
    auto const num_bags = view.offsets.empty() ? unique.inverse_indices.numel() : bags.offsets->numel() - 1;
    auto out = empty({num_bags, width_of(values)}, at::kFloat, kHost);
    deduplicator_->expand(on_host(unique), view, floats_of(values, kHost, "values"),
                          span_of<float>(out, at::kFloat, kHost, "out"));
    return out;
  }

  at::Tensor reduce(UniqueTensors const& unique, BagTensors const& bags, at::Tensor const& values) override {
    auto sums = empty({unique.num_rows(), width_of(values)}, at::kFloat, kHost);
    deduplicator_->reduce(on_host(unique), bags.view(kHost), floats_of(values, kHost, "values"),
                          span_of<float>(sums, at::kFloat, kHost, "sums"));
    return sums;
  }

  std::pair<at::Tensor, at::Tensor> route(KeyTensors const& keys, std::uint32_t num_ranks) override {
    auto routed = embedding::route(keys.view(kHost), num_ranks);
    return {tensor_of(std::move(routed.order), at::kInt), tensor_of(std::move(routed.counts), at::kLong)};
  }

 private:
  std::unique_ptr<Deduplicator> deduplicator_;
};

}  // namespace

std::unique_ptr<TensorDeduplicator> make_host_deduplicator(std::shared_ptr<base::ThreadPool> thread_pool) {
  return std::make_unique<HostDeduplicator>(std::move(thread_pool));
}

}  // namespace headway::embedding
