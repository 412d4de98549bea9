// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/kernels/hstu_attention.hpp"
#include "torch_headers.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace headway::kernels {

/// Arguments of torch.ops.headway.hstu_attention in the order of its schema. python/headway/ops/hstu_attention.py
/// documents them.
struct HstuArguments {
  static constexpr char const* kSchema =
      "Tensor q, Tensor k, Tensor v, Tensor offsets, Tensor key_offsets, SymInt max_length, "
      "Tensor? position_weights, Tensor? time_weights, Tensor? time_bounds, Tensor? query_times, Tensor? key_times, "
      "Tensor? num_contextual, Tensor? num_targets, float alpha, float scale, str length_scaling, bool causal, "
      "int window, int full_attention_tail, bool deterministic, Tensor? query_runs=None";
  static constexpr std::size_t kCount = 21;

  /// @param values kCount values from torch's stack
  explicit HstuArguments(c10::ArrayRef<c10::IValue> values);

  at::Tensor q, k, v, offsets, key_offsets;
  std::int64_t max_length;
  std::optional<at::Tensor> position_weights, time_weights, time_bounds, query_times, key_times;
  std::optional<at::Tensor> num_contextual, num_targets;
  double alpha, scale;
  std::string length_scaling;
  bool causal;
  std::int64_t window, full_attention_tail;
  bool deterministic;
  std::optional<at::Tensor> query_runs;
};

/// View of the tensors for a kernel. `arguments` must outlive the result.
/// @throws c10::ValueError that names the argument whose shape, type or device is wrong
HstuForwardArgs view_of(HstuArguments const& arguments);

/// Uninitialised tensor (tokens, heads, num_columns) with the tokens, heads and options of `like`.
at::Tensor empty_like_heads(at::Tensor const& like, std::int64_t num_columns);
/// View of a tensor (tokens, heads, columns) for a kernel.
template <class Pointer>
JaggedHeads<Pointer> heads_of(at::Tensor const& tensor) {
  return {.data = tensor.data_ptr(), .token_stride = tensor.stride(0), .head_stride = tensor.stride(1)};
}

}  // namespace headway::kernels
