// SPDX-License-Identifier: Apache-2.0

#include "record_tensors.hpp"

#include "batch_memory.hpp"
#include "headway/base/status.hpp"
#include "tensors.hpp"

namespace headway::embedding {

namespace {

at::Device const kHost(at::kCPU);

/// A column of a fragment. @param owner keeps its memory
template <class T>
at::Tensor tensor_of(std::span<T const> column, at::IntArrayRef shape, at::ScalarType type, at::Tensor const& owner) {
  return borrow(column.data(), shape, type, kHost, std::make_shared<at::Tensor>(owner));
}

}  // namespace

RecordFragment FragmentTensors::view() const {
  auto const words = [](at::Tensor const& tensor, char const* name) -> std::span<std::uint32_t const> {
    return span_of<std::uint32_t>(tensor, at::kInt, kHost, name);
  };
  auto const ids_of = [](at::Tensor const& tensor, char const* name) -> std::span<std::uint64_t const> {
    return span_of<std::uint64_t>(tensor, at::kLong, kHost, name);
  };
  return {.routing_version = routing_version,
          .updates = updates,
          .first_bucket = buckets.first,
          .end_bucket = buckets.second,
          .table = table,
          .rows = {.ids = ids_of(ids, "ids"),
                   .table = table,
                   .counts = words(counts, "counts"),
                   .steps = words(steps, "steps"),
                   .embeddings = floats_of(embeddings, kHost, "embeddings"),
                   .states = floats_of(states, kHost, "states"),
                   .dim = static_cast<std::size_t>(width_of(embeddings)),
                   .state_size = static_cast<std::size_t>(width_of(states))},
          .pending = {.ids = ids_of(pending_ids, "pending ids"),
                      .table = table,
                      .counts = words(pending_counts, "pending counts"),
                      .are_pending = true}};
}

at::Tensor encode(FragmentTensors const& fragment) {
  auto const view = fragment.view();
  auto bytes = empty({1, static_cast<std::int64_t>(encoded_bytes(view))}, at::kByte, kHost);
  encode(view, {static_cast<std::byte*>(bytes.mutable_data_ptr()), encoded_bytes(view)});
  return bytes;
}

FragmentTensors decode(at::Tensor const& bytes) {
  auto const span = span_of<std::uint8_t>(bytes, at::kByte, kHost, "records");
  // The columns are views of the bytes, and begin with 64-bit ids.
  auto const aligned = reinterpret_cast<std::uintptr_t>(span.data()) % alignof(std::uint64_t) == 0;
  auto const owner = aligned ? bytes : bytes.clone();
  auto const fragment = decode(std::as_bytes(span_of<std::uint8_t>(owner, at::kByte, kHost, "records")));
  auto const& rows = fragment.rows;
  auto const K = static_cast<std::int64_t>(rows.ids.size());
  auto const P = static_cast<std::int64_t>(fragment.pending.ids.size());
  auto const D = static_cast<std::int64_t>(rows.dim), S = static_cast<std::int64_t>(rows.state_size);
  return {.routing_version = fragment.routing_version,
          .updates = fragment.updates,
          .buckets = {fragment.first_bucket, fragment.end_bucket},
          .table = fragment.table,
          .ids = tensor_of(rows.ids, {K}, at::kLong, owner),
          .counts = tensor_of(rows.counts, {K}, at::kInt, owner),
          .steps = tensor_of(rows.steps, {K}, at::kInt, owner),
          .embeddings = tensor_of(rows.embeddings, {K, D}, at::kFloat, owner),
          .states = tensor_of(rows.states, {K, S}, at::kFloat, owner),
          .pending_ids = tensor_of(fragment.pending.ids, {P}, at::kLong, owner),
          .pending_counts = tensor_of(fragment.pending.counts, {P}, at::kInt, owner)};
}

}  // namespace headway::embedding
