#pragma once

#include "headway/kernels/hstu_attention.hpp"
#include "torch_headers.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace headway::kernels {

/// The arguments of torch.ops.headway.hstu_attention in the order of its schema; python/headway/ops/hstu_attention.py
/// says what they are.
struct HstuArguments {
  static constexpr char const* kSchema =
      "Tensor q, Tensor k, Tensor v, Tensor offsets, Tensor key_offsets, SymInt max_length, "
      "Tensor? position_weights, Tensor? time_weights, Tensor? time_bounds, Tensor? query_times, Tensor? key_times, "
      "Tensor? num_contextual, Tensor? num_targets, float alpha, float scale, str length_scaling, bool causal, "
      "int window, int full_attention_tail, bool deterministic";
  static constexpr std::size_t kCount = 20;

  /// @param values kCount of them
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
};

/// Their memory, for a kernel. `arguments` must outlive the outcome.
/// @throws c10::ValueError that names the argument whose shape, type or device is wrong
HstuForwardArgs view_of(HstuArguments const& arguments);

/// An empty tensor (tokens, heads, columns) like `like`, and its memory.
at::Tensor empty_like_heads(at::Tensor const& like, std::int64_t num_columns);
template <class Pointer>
JaggedHeads<Pointer> heads_of(at::Tensor const& tensor) {
  return {.data = tensor.data_ptr(), .token_stride = tensor.stride(0), .head_stride = tensor.stride(1)};
}

}  // namespace headway::kernels
