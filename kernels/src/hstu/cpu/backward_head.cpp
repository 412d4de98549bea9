// SPDX-License-Identifier: Apache-2.0

// Backward pass of one head of a sequence on the CPU; backward_head.hpp has the idea. With S = alpha (Q K^T + bias),
// P = SiLU(S) scale and O = P V, the gradients are
//
//  dV = P^T dO,  dP = dO V^T,  dS = dP * SiLU'(S) * scale * alpha,  dQ = dS K,  dK = dS^T Q,
//
// where SiLU' is the derivative. With its factor alpha, dS is the gradient of Q K^T + bias. The gradient of a bias
// weight is the sum of dS over the pairs that use it. Blocks are stored with a row per key, that is transposed; a
// prime after a matrix in comments marks such a block.

#include "hstu/cpu/backward_head.hpp"

#include <algorithm>
#include <cstdint>

namespace headway::kernels::hstu {
namespace {

/// Rows of keys of the longest sequence, rounded up to whole blocks.
std::int64_t max_key_rows(HstuSequences const& sequences) {
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
      score_blocks_(forward_, kernels),
      pds_operand_(kernels),
      values_(kBlockSize * depth_of<Element>(value_stride_)),
      grad_out_(kBlockSize * depth_of<Element>(value_stride_)),
      transposed_grad_out_(depth_of<Element>(forward_.value_dim) * kBlockSize),
      deep_queries_(forward_.dim),
      deep_keys_(forward_.dim),
      deep_grad_out_(forward_.value_dim),
      ds_(kBlockSize * kBlockSize),
      grad_queries_(kBlockSize * row_stride_),
      grad_keys_(max_key_rows(forward_.sequences) * row_stride_),
      grad_values_(max_key_rows(forward_.sequences) * value_stride_) {}

/// Goes through blocks of queries; for each, through the visible blocks of keys. dQ is stored after each block of
/// queries, dK and dV after the last.
template <class Element>
void BackwardHead<Element>::compute(Sequence const& sequence, std::int64_t head, BiasGradients<Real> const& of_bias) {
  std::int64_t const num_keys = sequence.num_keys();
  std::fill_n(grad_keys_.data(), num_keys * row_stride_, Real(0));
  std::fill_n(grad_values_.data(), num_keys * value_stride_, Real(0));
  for_each_run(forward_, sequence, [&](Sequence const& run) { add_run(run, head, of_bias); });
  ElementType const type = args_.key_gradient_type();
  kernels_.store(grad_keys_.data(), row_stride_,
                 rows_of(args_.grad_key, type, head, sequence.first_key, num_keys, forward_.dim));
  kernels_.store(grad_values_.data(), value_stride_,
                 rows_of(args_.grad_value, type, head, sequence.first_key, num_keys, forward_.value_dim));
}

template <class Element>
void BackwardHead<Element>::add_run(Sequence const& run, std::int64_t head, BiasGradients<Real> const& of_bias) {
  for_each_block({0, run.num_queries()}, [&](TokenRange queries) {
    load_queries(run, head, queries);
    for_each_block({0, run.num_keys()}, [&](TokenRange keys) {
      BlockVisibility const visibility = visibility_of(run, queries, keys);
      // Blocks that nobody sees add nothing to any gradient, so they cost only this test.
      if (visibility != BlockVisibility::kNone) add_block(run, head, keys, visibility, of_bias);
    });
    kernels_.store(
        grad_queries_.data(), row_stride_,
        rows_of(args_.grad_query, forward_.type, head, run.first_query + queries.begin, queries.size, forward_.dim));
  });
}

// Q and dO are operands of two products each, which sum over different indices. Single numbers serve both from one
// buffer; pairs need a copy per index (load_deep()).
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
  score_blocks_.load_keys(sequence, head, keys);
  deep_keys_.load(kernels_,
                  rows_of(forward_.key, forward_.type, head, sequence.first_key + keys.begin, keys.size, forward_.dim),
                  score_blocks_.keys());
  ScoreBlock<Real> const block = score_blocks_.compute(queries_, visibility);
  compute_dp(sequence, head, keys);
  kernels_.compute_p_and_ds(block, ds_.data());
  accumulate_gradients(block, keys);
  if (score_blocks_.bias().is_there())
    score_blocks_.bias().add_gradients(sequence, queries_.range(), keys, ds_.data(), of_bias.of_position,
                                       of_bias.of_time);
}

/// dP' of a block: values (rows) times the gradient of the output (columns), with keys as rows.
template <class Element>
void BackwardHead<Element>::compute_dp(Sequence const& sequence, std::int64_t head, TokenRange keys) {
  kernels_.load(
      rows_of(forward_.value, forward_.type, head, sequence.first_key + keys.begin, keys.size, forward_.value_dim),
      values_.data(), depth_of<Element>(value_stride_));
  kernels_.gemm({.rows = keys.size,
                 .columns = queries_.range().size,
                 .depth = depth_of<Element>(forward_.value_dim),
                 .a = {values_.data(), depth_of<Element>(value_stride_)},
                 .b = {transposed_grad_out_.data(), kBlockSize},
                 .c = {ds_.data(), kBlockSize}});
}

/// Adds the products of a block to the gradients: dV += P' dO, dK += dS' Q, dQ += dS K.
template <class Element>
void BackwardHead<Element>::accumulate_gradients(ScoreBlock<Real> const& block, TokenRange keys) {
  kernels_.gemm({.rows = block.num_keys,
                 .columns = forward_.value_dim,
                 .depth = depth_of<Element>(block.num_queries),
                 .a = pds_operand_.keys_by_queries(block.s, block.num_keys, block.num_queries),
                 .b = deep_grad_out_.rows(),
                 .c = {grad_values_.data() + keys.begin * value_stride_, value_stride_},
                 .into = Into::kAdd});
  kernels_.gemm({.rows = block.num_keys,
                 .columns = forward_.dim,
                 .depth = depth_of<Element>(block.num_queries),
                 .a = pds_operand_.keys_by_queries(ds_.data(), block.num_keys, block.num_queries),
                 .b = deep_queries_.rows(),
                 .c = {grad_keys_.data() + keys.begin * row_stride_, row_stride_},
                 .into = Into::kAdd});
  kernels_.gemm({.rows = block.num_queries,
                 .columns = forward_.dim,
                 .depth = depth_of<Element>(block.num_keys),
                 .a = pds_operand_.queries_by_keys(ds_.data(), block.num_keys, block.num_queries),
                 .b = deep_keys_.rows(),
                 .c = {grad_queries_.data(), row_stride_},
                 .into = Into::kAdd});
}

template class BackwardHead<float>;
template class BackwardHead<double>;
template class BackwardHead<Bfloat16Pair>;

}  // namespace headway::kernels::hstu
