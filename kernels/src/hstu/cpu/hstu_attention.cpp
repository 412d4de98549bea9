// SPDX-License-Identifier: Apache-2.0

// HSTU attention on the CPU.
//
// Idea: queries and keys are cut into blocks of 64. Only blocks that the mask makes visible are computed
// (HstuSequenceMask::visibility), and only partly visible ones are masked. Scores have a row per key, so keys are used
// in their own layout, and a block of queries is transposed once for all its keys. Forward, threads take groups of up
// to 256 queries of a head (ForwardGroup); backward, whole heads of sequences (BackwardHead). Products and SiLU are
// vector functions, compiled per instruction set (BlockKernels); bfloat16 runs as pairs where the processor has
// AVX512_BF16, else in float32.
//
// Example: causal, 300 queries and keys. Query block 4 (256 to 299) sees key blocks 0 to 3 whole and block 4 partly:
// five blocks of scores, one of them masked.
//
// Invariants: results do not depend on the number of threads, since each output has one owner and all sums have a fixed
// order. Another instruction set may give other bits.
// Complexity: 2 products per visible block forward, 5 backward; a few blocks of memory per thread, and backward dK and
// dV of the longest sequence.
// Source: HSTU: Zhai et al. 2024, equation 3; the definition is python/headway/reference/hstu_attention.py.

#include "headway/kernels/hstu_attention.hpp"

#include "hstu/check_arguments.hpp"
#include "hstu/cpu/block_kernels.hpp"
#include "hstu/cpu/passes.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

namespace headway::kernels {
namespace {

/// Sets rows [begin, end) of all heads to 0.
void clear_rows(HstuForwardArgs const& args, JaggedHeads<void*> const& rows, std::int32_t columns, std::int64_t begin,
                std::int64_t end) {
  std::int64_t const bytes = size_of(args.type);
  for (std::int64_t token = begin; token < end; ++token) {
    for (std::int64_t head = 0; head < args.num_heads; ++head) {
      std::int64_t const at = (token * rows.token_stride + head * rows.head_stride) * bytes;
      std::memset(static_cast<std::byte*>(rows.data) + at, 0, static_cast<std::size_t>(columns * bytes));
    }
  }
}

/// Sets the rows behind the last offset, which belong to no sequence, to 0.
void clear_query_rows_behind(HstuForwardArgs const& args, JaggedHeads<void*> const& rows, std::int32_t columns) {
  HstuSequences const& all = args.sequences;
  clear_rows(args, rows, columns, all.query_offsets[all.num_sequences], all.num_queries);
}
void clear_key_rows_behind(HstuForwardArgs const& args, JaggedHeads<void*> const& rows, std::int32_t columns) {
  HstuSequences const& all = args.sequences;
  clear_rows(args, rows, columns, all.key_offsets[all.num_sequences], all.num_keys);
}

void check_num_threads(int num_threads) {
  if (num_threads < 1)
    throw std::invalid_argument("HSTU attention: num_threads is " + std::to_string(num_threads) +
                                " and must be at least 1");
}

/// Does this processor multiply elements of the type in pairs?
bool are_paired(ElementType type) {
  return type == ElementType::kBfloat16 && !hstu::usable_block_kernels<hstu::Bfloat16Pair>().empty();
}

}  // namespace

void hstu_attention_forward(HstuForwardArgs const& args, int num_threads, Executor const& executor) {
  check_num_threads(num_threads);
  hstu::check_arguments(args);
  clear_query_rows_behind(args, args.out, args.value_dim);
  if (args.type == ElementType::kFloat64)
    hstu::run_forward_pass<double>(args, num_threads, executor);
  else if (are_paired(args.type))
    hstu::run_forward_pass<hstu::Bfloat16Pair>(args, num_threads, executor);
  else
    hstu::run_forward_pass<float>(args, num_threads, executor);
}

void hstu_attention_backward(HstuBackwardArgs const& args, int num_threads, Executor const& executor) {
  check_num_threads(num_threads);
  hstu::check_arguments(args);
  clear_query_rows_behind(args.forward, args.grad_query, args.forward.dim);
  clear_key_rows_behind(args.forward, args.grad_key, args.forward.dim);
  clear_key_rows_behind(args.forward, args.grad_value, args.forward.value_dim);
  if (args.forward.type == ElementType::kFloat64)
    hstu::run_backward_pass<double>(args, num_threads, executor);
  else if (are_paired(args.forward.type))
    hstu::run_backward_pass<hstu::Bfloat16Pair>(args, num_threads, executor);
  else
    hstu::run_backward_pass<float>(args, num_threads, executor);
}

}  // namespace headway::kernels
