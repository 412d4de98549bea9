// SPDX-License-Identifier: Apache-2.0

// Parameters of initial embeddings, with checks. `base` and `width` are the value and 0 of a constant, the lowest value
// and range of a uniform, or the mean and standard deviation of a normal distribution. The formulas are in
// initial_values.hpp, since kernels need them too.

#include "headway/embedding/initializer.hpp"

#include "headway/base/status.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>

namespace headway::embedding {

Initializer::Initializer(InitialValues const& values) : values_(values) {
  base::expects(std::isfinite(values.base) && std::isfinite(values.width) && values.width >= 0,
                "initial values need finite limits, and a range or deviation from 0: not " +
                    std::to_string(values.base) + " and " + std::to_string(values.width));
}

Initializer Initializer::constant(float value) { return Initializer({.base = value}); }

Initializer Initializer::uniform(float low, float high, std::uint64_t seed) {
  return Initializer({.law = InitialValues::Law::kUniform, .base = low, .width = high - low, .seed = seed});
}

Initializer Initializer::normal(float mean, float deviation, std::uint64_t seed) {
  return Initializer({.law = InitialValues::Law::kNormal, .base = mean, .width = deviation, .seed = seed});
}

void Initializer::fill(Key key, std::span<float> embedding) const {
  if (values_.law == InitialValues::Law::kConstant) {
    std::ranges::fill(embedding, values_.base);
    return;
  }
  constexpr std::size_t kAtOnce = InitialValues::kAtOnce;
  for (std::size_t first = 0; first < embedding.size(); first += kAtOnce) {
    auto const values = values_.of(key, static_cast<std::uint32_t>(first / kAtOnce));
    std::copy_n(values.begin(), std::min(kAtOnce, embedding.size() - first),
                embedding.begin() + static_cast<std::ptrdiff_t>(first));
  }
}

}  // namespace headway::embedding
