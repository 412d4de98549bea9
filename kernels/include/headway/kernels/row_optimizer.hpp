// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/kernels/vector_kernels.hpp"
#include "headway/kernels/weight_update.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace headway::kernels {

/// Update rule.
enum class OptimizerKind : std::uint8_t {
  kSgd,
  kAdagrad,
  kRowWiseAdagrad,  ///< One accumulator per row: sum of the mean squares of gradients.
  kAdam,
  kRowWiseAdam,  ///< Second moment per row: moving average of the mean squares of gradients.
};

enum class WeightDecay : std::uint8_t {
  kL2,         ///< Added to the gradient, as in torch.optim.Adam.
  kDecoupled,  ///< Shrinks the weights themselves by rate * decay, as in torch.optim.AdamW.
};

/// Defaults are those of torch.optim, except `epsilon`: torch uses 1e-10 for Adagrad.
struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::kSgd;
  double epsilon = 1e-8;
  double beta1 = 0.9, beta2 = 0.999;  ///< Used by Adam and row-wise Adam.
  double initial_accumulator = 0;     ///< Used by Adagrad and row-wise Adagrad.
  double weight_decay = 0;
  WeightDecay decay = WeightDecay::kL2;
};

/// Parameters of a step that all rows share.
struct OptimizerStep {
  double learning_rate = 0;
  std::uint64_t number = 1;  ///< Counts from 1; used by the bias correction of Adam.
};

/// Updates single rows by the formulas of torch.optim. A step skips rows without a gradient: neither their moments nor
/// their weights decay meanwhile (as in torch.optim.SparseAdam and FBGEMM).
class RowOptimizer {
 public:
  /// @throws std::invalid_argument for options out of their range
  explicit RowOptimizer(OptimizerOptions const& options);

  [[nodiscard]] OptimizerOptions const& options() const { return options_; }
  /// Floats of state per row of `dim` weights, besides the single float of a row-wise optimizer.
  [[nodiscard]] std::size_t state_size(std::size_t dim) const;
  /// Does the optimizer keep one float per row?
  [[nodiscard]] bool is_row_wise() const;
  /// Initial value of all state.
  [[nodiscard]] float initial_state() const { return static_cast<float>(options_.initial_accumulator); }

  /// Factors that update() needs in a step. @throws std::invalid_argument if the number is 0 or the rate is not finite
  [[nodiscard]] UpdateFactors factors(OptimizerStep const& step) const;
  /// Updates one row in place.
  /// @param weights, gradient (dim)
  /// @param state (state_size(dim)); for Adam, first moments, then second moments
  /// @param row_state float of a row-wise optimizer; unused by others
  void update(UpdateFactors const& by, std::span<float> weights, std::span<float> state, float& row_state,
              std::span<float const> gradient) const;

 private:
  OptimizerOptions options_;
  VectorKernels const* kernels_ = &fastest_vector_kernels();
};

}  // namespace headway::kernels
