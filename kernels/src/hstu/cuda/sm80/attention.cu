// SPDX-License-Identifier: Apache-2.0

// HSTU attention on sm_80 and later: dispatch by dim. Dims between the compiled ones run with the next larger one;
// the columns that do not exist are zero in shared memory and are not stored.

#include "headway/base/cuda_check.hpp"
#include "hstu/cuda/sm80/attention.hpp"
#include "hstu/cuda/sm80/plan.hpp"
#include "hstu/cuda/sm80/sum_partials.cuh"
#include "hstu/cuda/tile/time_table.cuh"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

namespace headway::kernels {
namespace {

/// Calls visit(number of columns): the smallest compiled number that holds dim and value_dim.
template <class Visit>
auto with_sm80_dim(HstuForwardArgs const& args, Visit const& visit) {
  std::int32_t const columns = std::max(args.dim, args.value_dim);
  if (columns <= 32) return visit(std::integral_constant<int, 32>{});
  if (columns <= 64) return visit(std::integral_constant<int, 64>{});
  if (columns <= 128) return visit(std::integral_constant<int, 128>{});
  return visit(std::integral_constant<int, 256>{});
}

/// Adds the partial sums of blocks of threads into `out` (sum_partials_kernel).
void sum_partials_async(float const* partials, std::int64_t num_partials, std::int64_t size, void* out,
                        CudaStream stream) {
  constexpr unsigned kThreads = 128;
  if (size == 0) return;
  auto const num_blocks = static_cast<unsigned>((size + kThreads - 1) / kThreads);
  sum_partials_kernel<<<num_blocks, kThreads, 0, stream>>>(partials, num_partials, size, static_cast<float*>(out));
  base::check_cuda(cudaGetLastError(), "sum_partials_kernel");
}

}  // namespace

std::string why_not_sm80(HstuForwardArgs const& args) {
  if (args.type == ElementType::kFloat64) return "elements are float64, for which the CPU has a kernel";
  if (args.dim < 1 || args.dim > 256) return "dim is " + std::to_string(args.dim) + ", not 1 to 256";
  if (args.value_dim < 1 || args.value_dim > 256) {
    return "value_dim is " + std::to_string(args.value_dim) + ", not 1 to 256";
  }
  if (args.bias.has_time() && args.bias.num_time_bounds > TimeTable::kMaxBounds) {
    return "there are more than " + std::to_string(TimeTable::kMaxBounds) + " time bounds";
  }
  for (TileRows const side : {TileRows::kQueries, TileRows::kKeys}) {
    // Tiles have at least 16 rows. Their numbers are 32-bit; the factor 2 leaves room for one step of the grid beyond
    // the last.
    if (num_sm80_tiles(args, side, 16) > std::numeric_limits<std::int32_t>::max() / 2) {
      return "there are too many sequences and heads of this length";
    }
  }
  return "";
}

void sm80_forward_async(HstuForwardArgs const& args, CudaStream stream) {
  with_sm80_dim(args, [&](auto dim) { sm80_forward_of_dim<dim()>(args, stream); });
}

std::size_t sm80_backward_workspace_bytes(HstuBackwardArgs const& args) {
  return Sm80Partials(args, nullptr).size_bytes();
}

void sm80_backward_async(HstuBackwardArgs const& args, CudaStream stream, void* workspace) {
  Sm80Partials const partials(args, workspace);
  std::int64_t const num_partials =
      with_sm80_dim(args.forward, [&](auto dim) { return sm80_backward_of_dim<dim()>(args, partials, stream); });
  sum_partials_async(partials.position, num_partials, partials.position_size, args.grad_position_weights, stream);
  sum_partials_async(partials.time, num_partials, partials.time_size, args.grad_time_weights, stream);
}

}  // namespace headway::kernels
