#include "hstu/cpu/score_blocks.hpp"

#include <cstdint>

namespace headway::kernels::hstu {

template <class Real>
ScoreBlocks<Real>::ScoreBlocks(HstuForwardArgs const& args, BlockKernels<Real> const& kernels)
    : args_(args),
      kernels_(kernels),
      row_stride_(padded(args.dim)),
      queries_(kBlockSize * row_stride_),
      transposed_queries_(args.dim * kBlockSize),
      keys_(kBlockSize * row_stride_),
      scores_(kBlockSize * kBlockSize),
      bias_(args.bias) {}

template <class Real>
void ScoreBlocks<Real>::set_queries(Sequence const& sequence, std::int64_t head, TokenRange queries) {
  sequence_ = sequence;
  head_ = head;
  query_range_ = queries;
  kernels_.load(rows_of(args_.query, args_.type, head, sequence.first_query + queries.begin, queries.size, args_.dim),
                queries_.data(), row_stride_);
  kernels_.transpose(queries_.data(), row_stride_, queries.size, args_.dim, transposed_queries_.data(), kBlockSize);
  set_seen_keys();
}

template <class Real>
void ScoreBlocks<Real>::set_seen_keys() {
  for (std::int64_t i = 0; i < query_range_.size; ++i) {
    auto const query = static_cast<std::int32_t>(query_range_.begin + i);
    HstuKeyRange const range = sequence_.mask.keys_seen_by(query);
    seen_.begin[i] = range.begin;
    seen_.end[i] = range.end;
    seen_.self[i] = sequence_.mask.token_of(query);
  }
}

template <class Real>
BlockVisibility ScoreBlocks<Real>::visibility(TokenRange keys) const {
  auto const end_of = [](TokenRange range) { return static_cast<std::int32_t>(range.begin + range.size); };
  return sequence_.mask.visibility(static_cast<std::int32_t>(query_range_.begin), end_of(query_range_),
                                   static_cast<std::int32_t>(keys.begin), end_of(keys));
}

template <class Real>
ScoreBlock<Real> ScoreBlocks<Real>::compute(TokenRange keys, BlockVisibility visibility) {
  kernels_.load(rows_of(args_.key, args_.type, head_, sequence_.first_key + keys.begin, keys.size, args_.dim),
                keys_.data(), row_stride_);
  kernels_.multiply({.rows = keys.size,
                     .columns = query_range_.size,
                     .depth = args_.dim,
                     .a = keys_.data(),
                     .a_row_stride = row_stride_,
                     .a_depth_stride = 1,
                     .b = transposed_queries_.data(),
                     .b_stride = kBlockSize,
                     .c = scores_.data(),
                     .c_stride = kBlockSize});
  return {.num_keys = keys.size,
          .num_queries = query_range_.size,
          .scores = scores_.data(),
          .bias = bias_.fill(sequence_, query_range_, keys),
          .seen = visibility == BlockVisibility::kFull ? nullptr : &seen_,
          .first_key = static_cast<MaskIndex<Real>>(keys.begin),
          .alpha = static_cast<Real>(args_.options.alpha),
          .scale = static_cast<Real>(scale_of(args_.options, sequence_))};
}

template class ScoreBlocks<float>;
template class ScoreBlocks<double>;

}  // namespace headway::kernels::hstu
