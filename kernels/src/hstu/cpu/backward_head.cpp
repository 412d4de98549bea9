#include "hstu/cpu/backward_head.hpp"

#include <algorithm>
#include <cstdint>

namespace headway::kernels::hstu {
namespace {

/// Rows of keys of the longest sequence, rounded up to whole blocks.
std::int64_t most_key_rows(HstuSequences const& sequences) {
  std::int64_t const most = std::min(sequences.max_keys, sequences.num_keys);
  return (most + kBlockSize - 1) / kBlockSize * kBlockSize;
}

}  // namespace

template <class Element>
BackwardHead<Element>::BackwardHead(HstuBackwardArgs const& args, BlockKernels<Element> const& kernels)
    : args_(args),
      forward_(args.forward),
      kernels_(kernels),
      row_stride_(padded(forward_.dim)),
      value_stride_(padded(forward_.value_dim)),
      queries_(forward_.dim),
      scores_(forward_, kernels),
      weights_(kernels),
      values_(kBlockSize * depth_of<Element>(value_stride_)),
      grad_out_(kBlockSize * depth_of<Element>(value_stride_)),
      transposed_grad_out_(depth_of<Element>(forward_.value_dim) * kBlockSize),
      deep_queries_(forward_.dim),
      deep_keys_(forward_.dim),
      deep_grad_out_(forward_.value_dim),
      grad_scores_(kBlockSize * kBlockSize),
      grad_queries_(kBlockSize * row_stride_),
      grad_keys_(most_key_rows(forward_.sequences) * row_stride_),
      grad_values_(most_key_rows(forward_.sequences) * value_stride_) {}

/// Goes through blocks of queries; for each, through the visible blocks of keys. dQ is stored after each block of
/// queries, dK and dV after the last.
template <class Element>
void BackwardHead<Element>::compute(Sequence const& sequence, std::int64_t head, BiasGradients<Real> const& of_bias) {
  std::int64_t const num_queries = sequence.num_queries(), num_keys = sequence.num_keys();
  std::fill_n(grad_keys_.data(), num_keys * row_stride_, Real(0));
  std::fill_n(grad_values_.data(), num_keys * value_stride_, Real(0));
  for_each_block({0, num_queries}, [&](TokenRange queries) {
    load_queries(sequence, head, queries);
    for_each_block({0, num_keys}, [&](TokenRange keys) {
      BlockVisibility const visibility = visibility_of(sequence, queries, keys);
      if (visibility != BlockVisibility::kNone) add_block(sequence, head, keys, visibility, of_bias);
    });
    kernels_.store(grad_queries_.data(), row_stride_,
                   rows_of(args_.grad_query, forward_.type, head, sequence.first_query + queries.begin, queries.size,
                           forward_.dim));
  });
  kernels_.store(grad_keys_.data(), row_stride_,
                 rows_of(args_.grad_key, forward_.type, head, sequence.first_key, num_keys, forward_.dim));
  kernels_.store(grad_values_.data(), value_stride_,
                 rows_of(args_.grad_value, forward_.type, head, sequence.first_key, num_keys, forward_.value_dim));
}

template <class Element>
void BackwardHead<Element>::load_queries(Sequence const& sequence, std::int64_t head, TokenRange queries) {
  std::int64_t const first = sequence.first_query + queries.begin;
  queries_.load(forward_, kernels_, sequence, head, queries);
  deep_queries_.load(kernels_, rows_of(forward_.query, forward_.type, head, first, queries.size, forward_.dim),
                     queries_.rows());
  auto const grad_out = rows_of(args_.grad_out, forward_.type, head, first, queries.size, forward_.value_dim);
  std::int64_t const stride = depth_of<Element>(value_stride_);
  kernels_.load(grad_out, grad_out_.data(), stride);
  kernels_.transpose(grad_out_.data(), stride, queries.size, depth_of<Element>(forward_.value_dim),
                     transposed_grad_out_.data(), kBlockSize);
  deep_grad_out_.load(kernels_, grad_out, grad_out_.data());
  std::fill_n(grad_queries_.data(), queries.size * row_stride_, Real(0));
}

template <class Element>
void BackwardHead<Element>::add_block(Sequence const& sequence, std::int64_t head, TokenRange keys,
                                      BlockVisibility visibility, BiasGradients<Real> const& of_bias) {
  scores_.load_keys(sequence, head, keys);
  deep_keys_.load(kernels_,
                  rows_of(forward_.key, forward_.type, head, sequence.first_key + keys.begin, keys.size, forward_.dim),
                  scores_.keys());
  ScoreBlock<Real> const block = scores_.compute(queries_, visibility);
  multiply_values(sequence, head, keys);
  kernels_.weigh_with_gradient(block, grad_scores_.data());
  multiply_gradients(block, keys);
  if (scores_.bias().is_there())
    scores_.bias().add_gradients(sequence, queries_.range(), keys, grad_scores_.data(), of_bias.of_position,
                                 of_bias.of_time);
}

/// dP' of a block: values (rows) times the gradient of the output (columns), with keys as rows.
template <class Element>
void BackwardHead<Element>::multiply_values(Sequence const& sequence, std::int64_t head, TokenRange keys) {
  kernels_.load(
      rows_of(forward_.value, forward_.type, head, sequence.first_key + keys.begin, keys.size, forward_.value_dim),
      values_.data(), depth_of<Element>(value_stride_));
  kernels_.multiply({.rows = keys.size,
                     .columns = queries_.range().size,
                     .depth = depth_of<Element>(forward_.value_dim),
                     .a = {values_.data(), depth_of<Element>(value_stride_)},
                     .b = {transposed_grad_out_.data(), kBlockSize},
                     .c = {grad_scores_.data(), kBlockSize}});
}

/// Adds the products of a block to the gradients: dV += P' dO, dK += dS' Q, dQ += dS K.
template <class Element>
void BackwardHead<Element>::multiply_gradients(ScoreBlock<Real> const& block, TokenRange keys) {
  kernels_.multiply({.rows = block.num_keys,
                     .columns = forward_.value_dim,
                     .depth = depth_of<Element>(block.num_queries),
                     .a = weights_.keys_by_queries(block.scores, block.num_keys, block.num_queries),
                     .b = deep_grad_out_.rows(),
                     .c = {grad_values_.data() + keys.begin * value_stride_, value_stride_},
                     .into = Into::kAdd});
  kernels_.multiply({.rows = block.num_keys,
                     .columns = forward_.dim,
                     .depth = depth_of<Element>(block.num_queries),
                     .a = weights_.keys_by_queries(grad_scores_.data(), block.num_keys, block.num_queries),
                     .b = deep_queries_.rows(),
                     .c = {grad_keys_.data() + keys.begin * row_stride_, row_stride_},
                     .into = Into::kAdd});
  kernels_.multiply({.rows = block.num_queries,
                     .columns = forward_.dim,
                     .depth = depth_of<Element>(block.num_keys),
                     .a = weights_.queries_by_keys(grad_scores_.data(), block.num_keys, block.num_queries),
                     .b = deep_keys_.rows(),
                     .c = {grad_queries_.data(), row_stride_},
                     .into = Into::kAdd});
}

template class BackwardHead<float>;
template class BackwardHead<double>;
template class BackwardHead<Bfloat16Pair>;

}  // namespace headway::kernels::hstu
