// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/kernels/gated_norm.hpp"
#include "layer_numbers.hpp"

#include <cstdint>
#include <vector>

namespace headway::kernels {

/// Both passes of GatedNorm by definition in float64, row by row; gradients by the chain rule. With the gate
/// s = silu(u), `form` selects the output: norm(x), norm(x) s, norm(x s), or s, x (or norm(x)) and norm(x) s side by
/// side.
struct GatedNormOracle {
  using Numbers = std::vector<double>;

  NormKind norm;
  GateForm form;
  double eps;
  Numbers weight, bias;
  Numbers out{}, statistics{};
  Numbers grad_x{}, grad_gate{}, grad_weight = Numbers(weight.size()), grad_bias = Numbers(weight.size());

  /// Appends a row to all outputs and gradients, and adds it to the gradients of weight and bias.
  /// @param u gate before SiLU
  /// @param residual gradient that is added to that of x
  void add_row(Numbers const& x, Numbers const& u, Numbers const& grad_out, Numbers const& residual) {
    std::size_t const size = x.size();
    auto const columns = static_cast<double>(size);
    bool const is_gated_before = form == GateForm::kGateThenNorm, is_gated = form != GateForm::kNone;
    Numbers s(size, 1), z(size), centred(size), normed(size);
    double mean = 0, square = 0;
    for (std::size_t c = 0; c < size; ++c) {
      if (is_gated) s[c] = silu(u[c]);
      z[c] = is_gated_before ? x[c] * s[c] : x[c];
      if (norm == NormKind::kLayer) mean += z[c] / columns;
    }
    for (double const each : z) square += (each - mean) * (each - mean) / columns;
    double const inverse = 1 / std::sqrt(square + eps);
    statistics.insert(statistics.end(), {mean, inverse});
    for (std::size_t c = 0; c < size; ++c) {
      centred[c] = (z[c] - mean) * inverse;
      normed[c] = centred[c] * weight[c] + bias[c];
    }

    std::size_t const last = static_cast<std::size_t>(num_parts(form) - 1) * size;
    std::size_t const begin = out.size();
    out.resize(begin + last + size);
    Numbers grad_normed(size), grad_s(size), direct(size);  // direct: gradient of the copy of x in the output.
    double sum = 0, product_sum = 0;
    for (std::size_t c = 0; c < size; ++c) {
      bool const is_product = is_gated && !is_gated_before;
      out[begin + last + c] = is_product ? normed[c] * s[c] : normed[c];
      grad_normed[c] = grad_out[last + c] * (is_product ? s[c] : 1);
      grad_s[c] = is_product ? grad_out[last + c] * normed[c] : 0;
      if (last > 0) {
        out[begin + c] = s[c];
        grad_s[c] += grad_out[c];
        out[begin + size + c] = form == GateForm::kConcat ? x[c] : normed[c];
        (form == GateForm::kConcat ? direct : grad_normed)[c] += grad_out[size + c];
      }
      grad_weight[c] += grad_normed[c] * centred[c];
      grad_bias[c] += grad_normed[c];
      sum += grad_normed[c] * weight[c] / columns;
      product_sum += grad_normed[c] * weight[c] * centred[c] / columns;
    }
    if (norm == NormKind::kRms) sum = 0;
    for (std::size_t c = 0; c < size; ++c) {
      double const grad_z = inverse * (grad_normed[c] * weight[c] - sum - centred[c] * product_sum);
      grad_x.push_back((is_gated_before ? grad_z * s[c] : grad_z) + direct[c] + residual[c]);
      if (is_gated) grad_gate.push_back((is_gated_before ? grad_z * x[c] : grad_s[c]) * silu_slope(u[c]));
    }
  }
};

}  // namespace headway::kernels
