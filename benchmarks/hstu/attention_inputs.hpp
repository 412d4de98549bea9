// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/kernels/hstu_attention_cuda.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace headway::benchmarks {

/// One measured point: lengths of the sequences, shape and bias.
struct AttentionPoint {
  std::string lengths{};  ///< Name of the lengths: "fixed" and the length, or "long_tail".
  std::vector<std::int64_t> sequence_lengths{};
  std::int32_t num_heads = 4, dim = 128;
  /// Learned summands of the scores, by position or time: "none", "position", "time" or "both".
  std::string bias = "none";
  bool is_deterministic = false;  ///< The backward pass adds gradients in a fixed order.

  /// Floating-point operations of the forward pass, counted as in publications: two products over n^2 / 2 pairs.
  [[nodiscard]] double forward_flops() const;
};

/// Random tensors of a point on the device, for a causal mask.
class AttentionInputs {
 public:
  /// Allocates and fills everything. @throws std::runtime_error if CUDA refuses
  explicit AttentionInputs(AttentionPoint const& point);

  /// Arguments of the backward pass; its `forward` is complete, with `out`.
  [[nodiscard]] kernels::HstuBackwardArgs const& args() const { return args_; }
  /// Workspace that is large enough for both passes.
  [[nodiscard]] void* workspace() const { return workspace_; }

 private:
  /// Frees device memory.
  struct Free {
    void operator()(void* memory) const;
  };
  /// Allocates device memory that lives as long as this object.
  void* allocate(std::size_t size_bytes);
  /// Allocates bf16 numbers and fills them with random values.
  void* random_rows(std::int64_t num_elements);
  /// Copies `values` to the device.
  template <class T>
  T* copy_of(std::vector<T> const& values);
  /// Adds the weights and times of the bias that `point` names.
  void add_bias(AttentionPoint const& point, std::int64_t num_tokens, std::int64_t max_length);

  std::vector<std::unique_ptr<void, Free>> memory_;
  kernels::HstuBackwardArgs args_;
  void* workspace_ = nullptr;
};

}  // namespace headway::benchmarks
