// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hstu_problem.hpp"

#include <cmath>
#include <cstdint>
#include <vector>

namespace headway::kernels {

/// HSTU attention by its definition, token by token, with sums of type `Real`: out = sum of scale * SiLU(x) * value
/// over the keys that a query sees, with x = alpha * (query . key + bias).
template <class Real>
class HstuOracle {
 public:
  explicit HstuOracle(HstuProblem& problem)
      : problem_(problem),
        args_(problem.forward()),
        query_(values_of(problem.query)),
        key_(values_of(problem.key)),
        value_(values_of(problem.value)),
        grad_out_(values_of(problem.grad_out)) {}

  /// Output; elements are laid out like the output tensor of the problem.
  [[nodiscard]] std::vector<Real> forward() {
    std::vector<Real> out(size_of(problem_.out));
    for_each_pair([&](Pair const& pair) {
      Real const weight = pair.x * sigmoid(pair.x) * pair.scale;
      for (int c = 0; c < args_.value_dim; ++c)
        out[at(problem_.out, pair.query, pair.head, c)] += weight * value_[at(problem_.value, pair.key, pair.head, c)];
    });
    return out;
  }

  /// Gradients, laid out like the tensors of the problem.
  struct Gradients {
    std::vector<Real> query, key, value, position_weights, time_weights;
  };

  [[nodiscard]] Gradients backward() {
    Gradients all{.query = std::vector<Real>(size_of(problem_.query)),
                  .key = std::vector<Real>(size_of(problem_.key)),
                  .value = std::vector<Real>(size_of(problem_.value)),
                  .position_weights = std::vector<Real>(static_cast<std::size_t>(problem_.position_weights.size())),
                  .time_weights = std::vector<Real>(static_cast<std::size_t>(problem_.time_weights.size()))};
    for_each_pair([&](Pair const& pair) { add_gradients(pair, all); });
    return all;
  }

 private:
  /// Visible pair of query and key for one head.
  struct Pair {
    std::int64_t query, key, head;  ///< Tokens are counted over all sequences.
    std::int64_t position, bucket;  ///< Indices of the pair's bias weights; -1 if there are none.
    Real x, scale;                  ///< `x` is alpha * (product + bias); `scale` multiplies SiLU(x).
  };

  static Real sigmoid(Real x) { return 1 / (1 + std::exp(-x)); }

  static std::size_t size_of(JaggedTensor const& tensor) { return static_cast<std::size_t>(tensor.elements().size()); }
  static std::size_t at(JaggedTensor const& tensor, std::int64_t token, std::int64_t head, std::int64_t column) {
    return static_cast<std::size_t>(tensor.index(token, head, column));
  }
  static std::vector<Real> values_of(JaggedTensor const& tensor) {
    std::vector<Real> values(size_of(tensor));
    tensor.for_each([&](auto... where) { values[at(tensor, where...)] = static_cast<Real>(tensor.get(where...)); });
    return values;
  }

  template <class Visit>
  void for_each_pair(Visit visit) {
    HstuSequences const& all = args_.sequences;
    for (std::int64_t b = 0; b < all.num_sequences; ++b) {
      std::int64_t const first_query = all.query_offsets[b], first_key = all.key_offsets[b];
      HstuSequenceMask const mask{.options = args_.options.mask,
                                  .num_queries = static_cast<std::int32_t>(all.query_offsets[b + 1] - first_query),
                                  .num_keys = static_cast<std::int32_t>(all.key_offsets[b + 1] - first_key),
                                  .num_contextual = all.num_contextual == nullptr ? 0 : all.num_contextual[b],
                                  .num_targets = all.num_targets == nullptr ? 0 : all.num_targets[b]};
      for (std::int32_t i = 0; i < mask.num_queries; ++i)
        for (std::int32_t j = 0; j < mask.num_keys; ++j)
          if (mask.sees(i, j))
            for (std::int64_t head = 0; head < args_.num_heads; ++head)
              visit(pair_of(mask, i, j, first_query + i, first_key + j, head));
    }
  }

  Pair pair_of(HstuSequenceMask const& mask, std::int32_t i, std::int32_t j, std::int64_t query, std::int64_t key,
               std::int64_t head) const {
    HstuBias const& bias = args_.bias;
    Pair pair{.query = query, .key = key, .head = head, .position = -1, .bucket = -1, .x = 0, .scale = 0};
    for (int c = 0; c < args_.dim; ++c)
      pair.x += query_[at(problem_.query, query, head, c)] * key_[at(problem_.key, key, head, c)];
    if (bias.has_position()) {
      pair.position = bias.max_position_distance - 1 + j - mask.token_of(i);
      pair.x += static_cast<Real>(problem_.position_weights.get(pair.position));
    }
    if (bias.has_time()) {
      auto const apart = static_cast<float>(std::abs(bias.query_times[query] - bias.key_times[key]));
      pair.bucket = 0;
      for (std::int64_t n = 0; n < bias.num_time_bounds; ++n) pair.bucket += apart >= bias.time_bounds[n] ? 1 : 0;
      pair.x += static_cast<Real>(problem_.time_weights.get(pair.bucket));
    }
    pair.x *= static_cast<Real>(args_.options.alpha);
    bool const by_keys = args_.options.length_scaling == LengthScaling::kByNumKeys;
    pair.scale = static_cast<Real>(args_.options.scale / (by_keys ? mask.num_keys : 1));
    return pair;
  }

  void add_gradients(Pair const& pair, Gradients& all) const {
    Real const s = sigmoid(pair.x), weight = pair.x * s * pair.scale;
    Real grad_weight = 0;
    for (int c = 0; c < args_.value_dim; ++c) {
      Real const grad = grad_out_[at(problem_.grad_out, pair.query, pair.head, c)];
      grad_weight += grad * value_[at(problem_.value, pair.key, pair.head, c)];
      all.value[at(problem_.value, pair.key, pair.head, c)] += weight * grad;
    }
    Real const grad_score =
        grad_weight * pair.scale * s * (1 + pair.x * (1 - s)) * static_cast<Real>(args_.options.alpha);
    for (int c = 0; c < args_.dim; ++c) {
      all.query[at(problem_.query, pair.query, pair.head, c)] +=
          grad_score * key_[at(problem_.key, pair.key, pair.head, c)];
      all.key[at(problem_.key, pair.key, pair.head, c)] +=
          grad_score * query_[at(problem_.query, pair.query, pair.head, c)];
    }
    if (pair.position >= 0) all.position_weights[static_cast<std::size_t>(pair.position)] += grad_score;
    if (pair.bucket >= 0) all.time_weights[static_cast<std::size_t>(pair.bucket)] += grad_score;
  }

  HstuProblem& problem_;
  HstuForwardArgs args_;
  std::vector<Real> query_, key_, value_, grad_out_;
};

}  // namespace headway::kernels
