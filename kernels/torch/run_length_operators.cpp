// SPDX-License-Identifier: Apache-2.0

// torch.ops.headway.run_lengths and unique_with_counts. Outputs are as long as inputs and a count tells how much of
// them is valid, so nothing waits for a device. python/headway/ops documents the arguments.

#include "headway/kernels/run_lengths.hpp"
#include "jagged_tensors.hpp"
#include "torch_headers.hpp"

#include <tuple>

namespace headway::kernels {

namespace {

using Runs = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

/// Checks keys: one dimension of int64 or int32.
void expect_keys(at::Tensor const& keys, char const* op) {
  TORCH_CHECK_VALUE(keys.dim() == 1 && (keys.scalar_type() == at::kLong || keys.scalar_type() == at::kInt), op,
                    ": keys must be one dimension of int64 or int32, not ", keys.scalar_type(), " ", keys.sizes());
}

/// Runs of equal neighbours. Example: keys 7 7 4 7 have values 7 4 7, lengths 2 1 1, run_of 0 0 1 2, and 3 runs.
/// @returns values, lengths, run of each key, number of runs (1); entries from that number on are 0
Runs run_lengths(at::Tensor const& keys) {
  expect_keys(keys, "run_lengths");
  at::Tensor const list = keys.contiguous();
  auto const counts = list.options().dtype(at::kLong);
  at::Tensor const values = at::empty_like(list), lengths = at::empty(list.sizes(), counts);
  at::Tensor const run_of = at::empty(list.sizes(), counts), num_runs = at::empty({1}, counts);
  RunLengths const runs{
      .type = list.scalar_type() == at::kInt ? RunLengths::KeyType::kInt32 : RunLengths::KeyType::kInt64,
      .size = list.numel(),
      .keys = list.const_data_ptr(),
      .values = values.mutable_data_ptr(),
      .lengths = lengths.mutable_data_ptr<std::int64_t>(),
      .run_of = run_of.mutable_data_ptr<std::int64_t>(),
      .num_runs = num_runs.mutable_data_ptr<std::int64_t>()};
  call_kernel([&] {
    if (list.is_cpu()) return find_run_lengths(runs, torch_executor());
    c10::DeviceGuard const guard(list.device());
    std::int64_t const num_bytes = run_lengths_scratch_bytes(runs);
    at::Tensor const scratch = at::empty({num_bytes}, list.options().dtype(at::kByte));
    find_run_lengths_async(runs, scratch.mutable_data_ptr(), num_bytes, current_stream(list.device()));
  });
  return {values, lengths, run_of, num_runs};
}

/// Sorted unique keys: a stable sort, then run lengths. `inverse` maps each key to its unique key.
Runs unique_with_counts(at::Tensor const& keys) {
  expect_keys(keys, "unique_with_counts");
  auto const [sorted, order] = keys.sort(/*stable=*/true, /*dim=*/0, /*descending=*/false);
  auto const [values, counts, run_of, num_unique] = run_lengths(sorted);
  at::Tensor const inverse = at::empty_like(run_of).scatter_(0, order, run_of);
  return {values, inverse, counts, num_unique};
}

void implement(torch::Library& library) {
  library.impl("run_lengths", &run_lengths);
  library.impl("unique_with_counts", &unique_with_counts);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(headway, library) {
  library.def("run_lengths(Tensor keys) -> (Tensor, Tensor, Tensor, Tensor)");
  library.def("unique_with_counts(Tensor keys) -> (Tensor, Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(headway, CPU, library) { implement(library); }
TORCH_LIBRARY_IMPL(headway, CUDA, library) { implement(library); }

}  // namespace headway::kernels
