// SPDX-License-Identifier: Apache-2.0

// Backward pass on the CPU: shares heads of sequences among threads. A head is the unit because dK and dV of a
// sequence are sums over all its queries: with one thread per head nothing needs atomics, and the order of sums is
// fixed.
//
// Example: lengths 100, 400 and 300, 2 heads, 2 threads. The work is proportional to the square of the length, so the
// order is 400 400 300 300 100 100. If the two heads of length 400 came last, one thread could begin its own when the
// other has finished all.

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

/// Order of sequences by descending work, so that no thread begins a long one when the others have finished.
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
  BlockKernels<Element> const& kernels = usable_block_kernels<Element>().back();
  std::vector<std::int64_t> const order = longest_first(args.forward);
  std::int64_t const num_heads = args.forward.num_heads, num_items = args.forward.sequences.num_sequences * num_heads;
  BiasSums<SumOf<Element>> sums(args);
  std::vector<BackwardHead<Element>> heads;
  for (int thread = 0; thread < num_threads && thread < num_items; ++thread) heads.emplace_back(args, kernels);

  for_each_item(num_items, num_threads, executor, [&](int thread, std::int64_t item) {
    Sequence const sequence = sequence_of(args.forward, order[static_cast<std::size_t>(item / num_heads)]);
    std::int64_t const head = item % num_heads;
    heads[static_cast<std::size_t>(thread)].compute(sequence, head, sums.of(sequence, head));
  });
  sums.reduce();
}

template void run_backward_pass<float>(HstuBackwardArgs const& args, int num_threads, Executor const& executor);
template void run_backward_pass<double>(HstuBackwardArgs const& args, int num_threads, Executor const& executor);
template void run_backward_pass<Bfloat16Pair>(HstuBackwardArgs const& args, int num_threads, Executor const& executor);

}  // namespace headway::kernels::hstu
