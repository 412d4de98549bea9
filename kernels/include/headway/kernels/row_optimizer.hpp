#pragma once

#include "headway/kernels/vector_kernels.hpp"
#include "headway/kernels/weight_update.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace headway::kernels {

enum class OptimizerKind : std::uint8_t {
  kSgd,
  kAdagrad,
  kRowWiseAdagrad,  ///< One accumulator a row: of the mean of squares.
  kAdam,
  kRowWiseAdam,  ///< The second moment is one number a row: of the mean of squares.
};

enum class WeightDecay : std::uint8_t {
  kL2,         ///< Added to the gradient, as in torch.optim.Adam.
  kDecoupled,  ///< Of the weights themselves, times the learning rate, as in torch.optim.AdamW.
};

/// With the defaults of torch.optim, but for `epsilon`, which is 1e-10 there for Adagrad.
struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::kSgd;
  double epsilon = 1e-8;
  double beta1 = 0.9, beta2 = 0.999;  ///< Of Adam and row-wise Adam.
  double initial_accumulator = 0;     ///< Of Adagrad and row-wise Adagrad.
  double weight_decay = 0;
  WeightDecay decay = WeightDecay::kL2;
};

/// What all rows of a step have in common.
struct OptimizerStep {
  double learning_rate = 0;
  std::uint64_t number = 1;  ///< From 1; for the bias correction of Adam.
};

/// Updates single rows by the formulas of torch.optim, where a step passes over the rows that it has no gradient for:
/// their moments do not decay meanwhile, nor their weights.
class RowOptimizer {
 public:
  /// @throws std::invalid_argument for options out of their range
  explicit RowOptimizer(OptimizerOptions const& options);

  [[nodiscard]] OptimizerOptions const& options() const { return options_; }
  /// Floats of state that a row of `dim` weights has of its own, besides the one of a row-wise optimizer.
  [[nodiscard]] std::size_t state_size(std::size_t dim) const;
  [[nodiscard]] bool is_row_wise() const;
  /// What all state begins with.
  [[nodiscard]] float initial_state() const { return static_cast<float>(options_.initial_accumulator); }

  /// What update() needs of a step. @throws std::invalid_argument if its number is 0 or its rate not finite
  [[nodiscard]] UpdateFactors factors(OptimizerStep const& step) const;
  /// @param weights, gradient (dim)
  /// @param state (state_size(dim)); of Adam the first moments, then the second
  /// @param row_state of a row-wise optimizer
  void update(UpdateFactors const& by, std::span<float> weights, std::span<float> state, float& row_state,
              std::span<float const> gradient) const;

 private:
  OptimizerOptions options_;
  VectorKernels const* kernels_ = &fastest_vector_kernels();
};

}  // namespace headway::kernels
