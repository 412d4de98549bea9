// SPDX-License-Identifier: Apache-2.0

// Backward pass on the CPU: shares heads of sequences among threads. A head is the unit because dK and dV of a
// sequence are sums over all its queries: with one thread per head nothing needs atomics, and the order of sums is
// fixed.
//
// Work is proportional to queries times keys. The longest heads come first, so that no thread begins a long one when
// the others have finished.
//
// Example: lengths 300, 300 and 400, 1 head, 2 threads. In units of 10,000 pairs the work is 9, 9 and 16. In that order
// one thread does 9 + 16 = 25. Longest first, it is 16 for one thread and 9 + 9 = 18 for the other.

#include "hstu/cpu/backward_head.hpp"
#include "hstu/cpu/bias_sums.hpp"
#include "hstu/cpu/block_kernels.hpp"
#include "hstu/cpu/for_each_item.hpp"
#include "hstu/cpu/passes.hpp"
#include "hstu/sequence.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

namespace headway::kernels::hstu {
namespace {

/// Indices of sequences by descending work.
std::vector<std::int64_t> longest_first(HstuForwardArgs const& args) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(args.sequences.num_sequences));
  std::iota(order.begin(), order.end(), 0);
  auto const work = [&](std::int64_t b) {
    Sequence const sequence = sequence_of(args, b);
    return sequence.num_queries() * sequence.num_keys();
  };
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return work(a) > work(b); });
  return order;
}

}  // namespace

/// Shares out heads of sequences among threads, then adds up the gradients of bias weights in a fixed order.
template <class Element>
void run_backward_pass(HstuBackwardArgs const& args, int num_threads, Executor const& executor) {
  BlockKernels<Element> const& kernels = usable_block_kernels<Element>().back();  // The fastest that this CPU supports.
  std::vector<std::int64_t> const order = longest_first(args.forward);
  std::int64_t const num_heads = args.forward.num_heads, num_items = args.forward.sequences.num_sequences * num_heads;
  BiasSums<SumOf<Element>> sums(args);
  std::vector<BackwardHead<Element>> workers;  // One per thread, with its buffers; computes one head after the other.
  for (int thread = 0; thread < num_threads && thread < num_items; ++thread) workers.emplace_back(args, kernels);

  for_each_item(num_items, num_threads, executor, [&](int thread, std::int64_t item) {
    Sequence const sequence = sequence_of(args.forward, order[static_cast<std::size_t>(item / num_heads)]);
    std::int64_t const head = item % num_heads;
    workers[static_cast<std::size_t>(thread)].compute(sequence, head, sums.of(sequence, head));
  });
  sums.reduce();
}

template void run_backward_pass<float>(HstuBackwardArgs const& args, int num_threads, Executor const& executor);
template void run_backward_pass<double>(HstuBackwardArgs const& args, int num_threads, Executor const& executor);
/// Bfloat16Pair: tensors of bfloat16 on CPUs that multiply pairs of them (block_kernels.hpp).
template void run_backward_pass<Bfloat16Pair>(HstuBackwardArgs const& args, int num_threads, Executor const& executor);

}  // namespace headway::kernels::hstu
