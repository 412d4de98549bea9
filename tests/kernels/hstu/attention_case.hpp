// SPDX-License-Identifier: Apache-2.0

// Cases of HSTU attention for the tests of GPU kernels, and their reference in float64.

#pragma once

#include "headway/kernels/hstu_attention.hpp"
#include "headway/kernels/hstu_mask.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace headway::kernels {

/// Input of HSTU attention for tests against AttentionOracle. Queries are the last tokens of a sequence; if there are
/// more keys than queries, the first keys are cached ones.
struct AttentionCase {
  std::string name{};
  std::vector<std::int64_t> num_queries{}, num_keys{};  ///< Tokens per sequence.
  std::int32_t num_heads = 1, dim = 64;
  HstuAttentionOptions options{};
  /// Tokens at the start of a sequence that see all its history, and at its end that do not see each other; or empty.
  std::vector<std::int32_t> num_contextual{}, num_targets{};
  bool has_position = false;         ///< Is there a bias by the distance of query and key?
  std::vector<float> time_bounds{};  ///< Bounds of the buckets of time differences; empty: no time bias.
  std::int64_t shortest_gap = 0, longest_gap = 100;  ///< Range of time differences between neighbouring tokens.
  std::int64_t padding = 0;                          ///< Elements between the heads of one token and those of the next.
  std::int32_t value_dim = 0;                        ///< 0: equal to `dim`.
  float hidden_weight = 0;                           ///< If not 0, the time weight of every third bucket.

  [[nodiscard]] std::int32_t value_columns() const { return value_dim > 0 ? value_dim : dim; }
  [[nodiscard]] bool has_bias() const { return has_position || !time_bounds.empty(); }
};

/// Tensors of a case as float, including `grad_out`. Rows are (tokens, heads, dim) without padding. Their numbers are
/// exact in the format under test; bias weights are any float32.
struct AttentionTensors {
  std::vector<std::int64_t> query_offsets{0}, key_offsets{0};
  std::int64_t max_queries = 0, max_keys = 0;
  std::vector<float> query, key, value, grad_out;
  std::vector<float> position_weights, time_weights;
  std::vector<std::int64_t> query_times, key_times;

  /// Allocated rows, including those behind the last offset.
  [[nodiscard]] std::int64_t num_query_rows(AttentionCase const& of) const {
    return static_cast<std::int64_t>(query.size()) / (of.num_heads * of.dim);
  }
  [[nodiscard]] std::int64_t num_key_rows(AttentionCase const& of) const {
    return static_cast<std::int64_t>(key.size()) / (of.num_heads * of.dim);
  }
  /// Appends rows of NaN behind the last offsets. Kernels must not read them.
  void add_rows_behind(AttentionCase const& of, std::int64_t rows) {
    auto const extend = [&](std::vector<float>& values, std::int32_t columns) {
      values.resize(values.size() + static_cast<std::size_t>(rows * of.num_heads * columns), NAN);
    };
    extend(query, of.dim);
    extend(key, of.dim);
    extend(value, of.value_columns());
    extend(grad_out, of.value_columns());
  }

  /// @param round rounds a float to the format under test
  template <class Round>
  AttentionTensors(AttentionCase const& of, Round round) {
    std::mt19937_64 generator(of.num_queries.size() * 31 + static_cast<std::size_t>(of.dim));
    std::normal_distribution<float> normal;
    auto const fill = [&](std::vector<float>& values, std::int64_t rows, std::int32_t columns) {
      values.resize(static_cast<std::size_t>(rows * of.num_heads * columns));
      for (float& number : values) number = round(normal(generator));
    };
    for (std::size_t b = 0; b < of.num_queries.size(); ++b)
      add_sequence(of, of.num_queries[b], of.num_keys[b], generator);
    fill(query, query_offsets.back(), of.dim);
    fill(key, key_offsets.back(), of.dim);
    fill(value, key_offsets.back(), of.value_columns());
    fill(grad_out, query_offsets.back(), of.value_columns());
    if (of.has_position) position_weights.resize(static_cast<std::size_t>(2 * max_keys - 1));
    if (!of.time_bounds.empty()) time_weights.resize(of.time_bounds.size() + 1);
    for (float& weight : position_weights) weight = normal(generator);
    for (float& weight : time_weights) weight = normal(generator);
    for (std::size_t i = 0; of.hidden_weight != 0 && i < time_weights.size(); i += 3)
      time_weights[i] = of.hidden_weight;
  }

 private:
  /// Appends offsets and times of a sequence; its queries are its last tokens.
  void add_sequence(AttentionCase const& of, std::int64_t queries, std::int64_t keys, std::mt19937_64& generator) {
    query_offsets.push_back(query_offsets.back() + queries);
    key_offsets.push_back(key_offsets.back() + keys);
    max_queries = std::max(max_queries, queries);
    max_keys = std::max(max_keys, keys);
    std::int64_t time = 1'600'000'000;
    for (std::int64_t i = 0; i < keys; ++i) {
      time += std::uniform_int_distribution<std::int64_t>(of.shortest_gap, of.longest_gap)(generator);
      key_times.push_back(time);
      if (i >= keys - queries) query_times.push_back(time);
    }
  }
};

/// Expected gradients in float64.
struct AttentionGradients {
  std::vector<double> query, key, value, position_weights, time_weights;
  /// Sums of absolute values, as if no terms cancelled and SiLU had slope 1. They scale the tolerance of bias
  /// gradients.
  std::vector<double> position_magnitudes, time_magnitudes;
};

/// Reference in float64 that visits each visible pair of query and key: out = sum of scale * SiLU(score) * value, with
/// score = alpha * (query . key + bias).
class AttentionOracle {
 public:
  AttentionOracle(AttentionCase const& of, AttentionTensors const& tensors) : case_(of), tensors_(tensors) {}

  /// Expected output, laid out like `grad_out`.
  [[nodiscard]] std::vector<double> out() const {
    std::vector<double> out(tensors_.grad_out.size());
    for_each_pair([&](Pair const& pair) {
      double const weight = pair.score / (1 + std::exp(-pair.score)) * pair.scale;
      for (std::size_t d = 0; d < value_dim(); ++d) out[pair.out + d] += weight * tensors_.value[pair.value + d];
    });
    return out;
  }

  /// Expected gradients of all inputs.
  [[nodiscard]] AttentionGradients gradients() const {
    AttentionGradients grads;
    grads.query.resize(tensors_.query.size());
    grads.key.resize(tensors_.key.size());
    grads.value.resize(tensors_.value.size());
    grads.position_weights.resize(tensors_.position_weights.size());
    grads.time_weights.resize(tensors_.time_weights.size());
    grads.position_magnitudes.resize(tensors_.position_weights.size());
    grads.time_magnitudes.resize(tensors_.time_weights.size());
    for_each_pair([&](Pair const& pair) { add_gradients(pair, grads); });
    return grads;
  }

 private:
  /// Visible pair of query and key for one head.
  struct Pair {
    std::size_t query, key, value, out;        ///< Indices of the first elements of their rows.
    double score, scale;                       ///< `score` includes alpha; `scale` multiplies SiLU(score).
    std::size_t position_weight, time_weight;  ///< Indices of the pair's bias weights.
  };

  [[nodiscard]] std::size_t dim() const { return static_cast<std::size_t>(case_.dim); }
  [[nodiscard]] std::size_t value_dim() const { return static_cast<std::size_t>(case_.value_columns()); }

  /// Calls visit(pair) for each visible pair and head.
  template <class Visit>
  void for_each_pair(Visit visit) const {
    for (std::size_t b = 0; b < case_.num_queries.size(); ++b) {
      HstuSequenceMask mask{.options = case_.options.mask,
                            .num_queries = static_cast<std::int32_t>(case_.num_queries[b]),
                            .num_keys = static_cast<std::int32_t>(case_.num_keys[b])};
      if (!case_.num_contextual.empty()) mask.num_contextual = case_.num_contextual[b];
      if (!case_.num_targets.empty()) mask.num_targets = case_.num_targets[b];
      for (std::int32_t i = 0; i < mask.num_queries; ++i) {
        for (std::int32_t j = 0; j < mask.num_keys; ++j) {
          for (std::int32_t head = 0; head < case_.num_heads && mask.sees(i, j); ++head) {
            visit(pair_of(mask, i, j, tensors_.query_offsets[b] + i, tensors_.key_offsets[b] + j, head));
          }
        }
      }
    }
  }

  /// Computes the score of a pair.
  [[nodiscard]] Pair pair_of(HstuSequenceMask const& mask, std::int32_t i, std::int32_t j, std::int64_t query,
                             std::int64_t key, std::int32_t head) const {
    Pair pair{};
    pair.query = static_cast<std::size_t>(query * case_.num_heads + head) * dim();
    pair.key = static_cast<std::size_t>(key * case_.num_heads + head) * dim();
    pair.value = static_cast<std::size_t>(key * case_.num_heads + head) * value_dim();
    pair.out = static_cast<std::size_t>(query * case_.num_heads + head) * value_dim();
    double sum = 0;
    for (std::size_t d = 0; d < dim(); ++d) sum += double{tensors_.query[pair.query + d]} * tensors_.key[pair.key + d];
    if (case_.has_position) {
      pair.position_weight = static_cast<std::size_t>(tensors_.max_keys - 1 + j - mask.token_of(i));
      sum += tensors_.position_weights[pair.position_weight];
    }
    if (!case_.time_bounds.empty()) {
      auto const apart = static_cast<float>(std::abs(tensors_.query_times[static_cast<std::size_t>(query)] -
                                                     tensors_.key_times[static_cast<std::size_t>(key)]));
      while (pair.time_weight < case_.time_bounds.size() && apart >= case_.time_bounds[pair.time_weight]) {
        ++pair.time_weight;
      }
      sum += tensors_.time_weights[pair.time_weight];
    }
    pair.score = case_.options.alpha * sum;
    bool const is_by_length = case_.options.length_scaling == LengthScaling::kByNumKeys;
    pair.scale = case_.options.scale / (is_by_length ? mask.num_keys : 1);
    return pair;
  }

  /// Adds the pair's contribution to all gradients.
  void add_gradients(Pair const& pair, AttentionGradients& grads) const {
    double const sigmoid = 1 / (1 + std::exp(-pair.score));
    double grad_weight = 0;
    for (std::size_t d = 0; d < value_dim(); ++d) {
      grad_weight += double{tensors_.grad_out[pair.out + d]} * tensors_.value[pair.value + d];
      grads.value[pair.value + d] += pair.score * sigmoid * pair.scale * tensors_.grad_out[pair.out + d];
    }
    double const grad_sum = grad_weight * pair.scale * case_.options.alpha * sigmoid * (1 + pair.score * (1 - sigmoid));
    for (std::size_t d = 0; d < dim(); ++d) {
      grads.query[pair.query + d] += grad_sum * tensors_.key[pair.key + d];
      grads.key[pair.key + d] += grad_sum * tensors_.query[pair.query + d];
    }
    double const magnitude = std::abs(grad_weight * pair.scale * case_.options.alpha);
    if (case_.has_position) {
      grads.position_weights[pair.position_weight] += grad_sum;
      grads.position_magnitudes[pair.position_weight] += magnitude;
    }
    if (!case_.time_bounds.empty()) {
      grads.time_weights[pair.time_weight] += grad_sum;
      grads.time_magnitudes[pair.time_weight] += magnitude;
    }
  }

  AttentionCase const& case_;
  AttentionTensors const& tensors_;
};

/// Euclidean norm of the error, relative to that of the expected values.
template <class Values>
[[nodiscard]] double relative_error(Values const& values, std::vector<double> const& expected) {
  double error = 0, size = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    error += (static_cast<double>(values[i]) - expected[i]) * (static_cast<double>(values[i]) - expected[i]);
    size += expected[i] * expected[i];
  }
  return size > 0 ? std::sqrt(error / size) : std::sqrt(error);
}

}  // namespace headway::kernels
