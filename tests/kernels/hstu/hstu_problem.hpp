// SPDX-License-Identifier: Apache-2.0

// Random arguments for HSTU attention, drawn from a seed: sequences of different lengths, contextual tokens, targets,
// times with gaps, and some times out of order, since kernels have a fast path for ascending ones.

#pragma once

#include "headway/kernels/hstu_attention.hpp"
#include "jagged_tensor.hpp"

#include <algorithm>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

namespace headway::kernels {

enum class BiasKind : std::uint8_t { kNone, kPosition, kTime, kBoth };

/// Parameters of a random problem.
struct HstuShape {
  std::vector<std::int64_t> key_lengths;
  std::vector<std::int64_t> cached_keys{};  ///< Number of keys without a query, per sequence; empty: none.
  std::int32_t num_heads = 2, dim = 5, value_dim = 3;
  ElementType type = ElementType::kFloat64;
  HstuAttentionOptions options{.alpha = 0.7, .scale = 0.4};
  BiasKind bias = BiasKind::kNone;
  std::int32_t max_contextual = 0, max_targets = 0;  ///< Upper bounds per sequence.
  HeadLayout layout = HeadLayout::kTokensOutside;
};

/// Random arguments of a call, with their memory.
class HstuProblem {
 public:
  explicit HstuProblem(HstuShape const& shape, std::uint32_t seed = 1) : shape_(shape), random_(seed) {
    make_sequences();
    std::int64_t const tq = query_offsets_.back(), tk = key_offsets_.back();
    query = tensor(tq, shape.dim);
    key = tensor(tk, shape.dim);
    value = tensor(tk, shape.value_dim);
    grad_out = tensor(tq, shape.value_dim);
    out = tensor(tq, shape.value_dim);
    grad_query = tensor(tq, shape.dim);
    grad_key = tensor(tk, shape.dim);
    grad_value = tensor(tk, shape.value_dim);
    for (JaggedTensor* each : {&query, &key, &value, &grad_out}) each->fill([&](auto...) { return uniform(-1, 1); });
    if (has_position()) position_weights = weights(2 * max_position_distance() - 1);
    if (has_time()) make_times();
  }

  /// Arguments of the forward pass; they point into this object.
  [[nodiscard]] HstuForwardArgs forward() {
    HstuForwardArgs args{.options = shape_.options, .sequences = sequences()};
    args.type = shape_.type;
    args.num_heads = shape_.num_heads;
    args.dim = shape_.dim;
    args.value_dim = shape_.value_dim;
    args.query = std::as_const(query).heads();
    args.key = std::as_const(key).heads();
    args.value = std::as_const(value).heads();
    args.bias = bias();
    args.out = out.heads();
    return args;
  }

  /// Arguments of the backward pass; gradients of bias weights begin as copies of the weights, to be overwritten.
  [[nodiscard]] HstuBackwardArgs backward() {
    HstuBackwardArgs args{.forward = forward()};
    args.grad_out = std::as_const(grad_out).heads();
    args.grad_query = grad_query.heads();
    args.grad_key = grad_key.heads();
    args.grad_value = grad_value.heads();
    grad_position_weights = position_weights;
    grad_time_weights = time_weights;
    if (has_position()) args.grad_position_weights = grad_position_weights.data();
    if (has_time()) args.grad_time_weights = grad_time_weights.data();
    return args;
  }

  JaggedTensor query, key, value, grad_out, out, grad_query, grad_key, grad_value;
  WeightTable position_weights, time_weights, grad_position_weights, grad_time_weights;

 private:
  [[nodiscard]] bool has_position() const {
    return shape_.bias == BiasKind::kPosition || shape_.bias == BiasKind::kBoth;
  }
  [[nodiscard]] bool has_time() const { return shape_.bias == BiasKind::kTime || shape_.bias == BiasKind::kBoth; }
  /// More than the required max_keys_: kernels must take the size of the table of weights from their arguments.
  [[nodiscard]] std::int64_t max_position_distance() const { return max_keys_ + 3; }

  double uniform(double from, double to) { return std::uniform_real_distribution<>(from, to)(random_); }
  std::int64_t integer(std::int64_t from, std::int64_t to) {
    return std::uniform_int_distribution<std::int64_t>(from, to)(random_);
  }

  [[nodiscard]] JaggedTensor tensor(std::int64_t tokens, std::int64_t columns) const {
    return {shape_.type, shape_.layout, tokens, shape_.num_heads, columns};
  }

  [[nodiscard]] WeightTable weights(std::int64_t size) {
    WeightTable table(shape_.type, size);
    for (std::int64_t i = 0; i < size; ++i) table.set(i, uniform(-1, 1));
    return table;
  }

  void make_sequences() {
    for (std::size_t b = 0; b < shape_.key_lengths.size(); ++b) {
      std::int64_t const keys = shape_.key_lengths[b];
      std::int64_t const queries = shape_.cached_keys.empty() ? keys : keys - shape_.cached_keys[b];
      key_offsets_.push_back(key_offsets_.back() + keys);
      query_offsets_.push_back(query_offsets_.back() + queries);
      max_keys_ = std::max(max_keys_, keys);
      max_queries_ = std::max(max_queries_, queries);
      std::int64_t const contextual = integer(0, std::min<std::int64_t>(shape_.max_contextual, keys));
      num_contextual_.push_back(static_cast<std::int32_t>(contextual));
      num_targets_.push_back(
          static_cast<std::int32_t>(integer(0, std::min<std::int64_t>(shape_.max_targets, keys - contextual))));
    }
  }

  [[nodiscard]] HstuSequences sequences() const {
    return {.num_sequences = static_cast<std::int64_t>(shape_.key_lengths.size()),
            .query_offsets = query_offsets_.data(),
            .key_offsets = key_offsets_.data(),
            .num_queries = query_offsets_.back(),
            .num_keys = key_offsets_.back(),
            .max_queries = max_queries_,
            .max_keys = max_keys_,
            .num_contextual = shape_.max_contextual == 0 ? nullptr : num_contextual_.data(),
            .num_targets = shape_.max_targets == 0 ? nullptr : num_targets_.data()};
  }

  [[nodiscard]] HstuBias bias() const {
    HstuBias bias;
    if (has_position()) {
      bias.position_weights = position_weights.data();
      bias.max_position_distance = max_position_distance();
    }
    if (has_time()) {
      bias.time_weights = time_weights.data();
      bias.time_bounds = time_bounds_.data();
      bias.num_time_bounds = static_cast<std::int64_t>(time_bounds_.size());
      bias.query_times = query_times_.data();
      bias.key_times = key_times_.data();
    }
    return bias;
  }

  /// Makes ascending times with a few long gaps, like clicks. In every other sequence some times are out of order.
  void make_times() {
    time_bounds_ = {1, 2, 4, 4, 16, 100, 1e6};  // The two equal bounds make an empty bucket.
    time_weights = weights(static_cast<std::int64_t>(time_bounds_.size()) + 1);
    for (std::size_t b = 0; b < shape_.key_lengths.size(); ++b) {
      std::int64_t time = 1'700'000'000;
      for (std::int64_t key_of_b = 0; key_of_b < shape_.key_lengths[b]; ++key_of_b) {
        time += integer(0, 9) == 0 ? integer(b % 2 == 0 ? 0 : -3'000'000, 3'000'000) : integer(0, 3);
        key_times_.push_back(time);
      }
      std::int64_t const queries = query_offsets_[b + 1] - query_offsets_[b];
      query_times_.insert(query_times_.end(), key_times_.end() - queries, key_times_.end());
    }
  }

  HstuShape shape_;
  std::mt19937 random_;
  std::vector<std::int64_t> query_offsets_{0}, key_offsets_{0};
  std::int64_t max_keys_ = 0, max_queries_ = 0;
  std::vector<std::int32_t> num_contextual_, num_targets_;
  std::vector<float> time_bounds_;
  std::vector<std::int64_t> query_times_, key_times_;
};

}  // namespace headway::kernels
