// SPDX-License-Identifier: Apache-2.0

// torch.ops.headway.join_ranges: parts of several lists in one, in memory of the host. python/headway/ops documents the
// arguments. An input pipeline joins samples with it that lie in different files.

#include "tensor_arguments.hpp"
#include "torch_headers.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace headway::kernels {

namespace {

/// Example: sources [a0 a1 a2] and [b0 b1], source_of 1 0, begins 0 1, ends 2 3 give b0 b1 a1 a2.
at::Tensor join_ranges(at::TensorList sources, at::Tensor const& source_of, at::Tensor const& begins,
                       at::Tensor const& ends, bool pin_memory) {
  TORCH_CHECK_VALUE(!sources.empty(), "join_ranges: there are no sources");
  for (at::Tensor const& each : sources) {
    expect_list(each, "join_ranges: a source", sources[0].scalar_type(), at::kCPU);
  }
  std::int64_t const num_ranges = source_of.numel();
  std::int64_t const* const source = list_of(source_of, "join_ranges: source_of", at::kCPU);
  std::int64_t const* const begin = list_of(begins, "join_ranges: begins", at::kCPU, num_ranges);
  std::int64_t const* const end = list_of(ends, "join_ranges: ends", at::kCPU, num_ranges);
  std::int64_t size = 0;
  for (std::int64_t i = 0; i < num_ranges; ++i) {
    TORCH_CHECK_VALUE(0 <= source[i] && static_cast<std::size_t>(source[i]) < sources.size(), "join_ranges: range ", i,
                      " is of source ", source[i], ", and there are ", sources.size());
    std::int64_t const num_values = sources[static_cast<std::size_t>(source[i])].numel();
    TORCH_CHECK_VALUE(0 <= begin[i] && begin[i] <= end[i] && end[i] <= num_values, "join_ranges: range ", i,
                      " goes from ", begin[i], " to ", end[i], ", and its source has ", num_values, " values");
    size += end[i] - begin[i];
  }
  at::Tensor out = at::empty({size}, sources[0].options().pinned_memory(pin_memory));
  std::size_t const value_bytes = sources[0].element_size();
  auto* next = static_cast<std::byte*>(out.mutable_data_ptr());
  for (std::int64_t i = 0; i < num_ranges; ++i) {
    std::size_t const num_bytes = static_cast<std::size_t>(end[i] - begin[i]) * value_bytes;
    if (num_bytes == 0) continue;  // Empty tensors may have no memory.
    auto const* const values =
        static_cast<std::byte const*>(sources[static_cast<std::size_t>(source[i])].const_data_ptr());
    std::memcpy(next, values + static_cast<std::size_t>(begin[i]) * value_bytes, num_bytes);
    next += num_bytes;
  }
  return out;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(headway, library) {
  library.def("join_ranges(Tensor[] sources, Tensor source_of, Tensor begins, Tensor ends, bool pin_memory) -> Tensor");
}

TORCH_LIBRARY_IMPL(headway, CPU, library) { library.impl("join_ranges", &join_ranges); }

}  // namespace headway::kernels
