#include "cuda/cuda_check.hpp"
#include "hstu/cuda/portable_attention.hpp"
#include "hstu/cuda/portable_plan.hpp"
#include "hstu/cuda/sum_partials.cuh"
#include "hstu/cuda/time_table.cuh"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

namespace headway::kernels {
namespace {

/// Calls visit(number of columns): the smallest compiled number that holds dim and value_dim.
template <class Visit>
auto with_portable_dim(HstuForwardArgs const& args, Visit const& visit) {
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
  check(cudaGetLastError(), "sum_partials_kernel");
}

}  // namespace

std::string why_not_portable(HstuForwardArgs const& args) {
  if (args.type == ElementType::kFloat64) return "elements are float64, for which the CPU has a kernel";
  if (args.dim < 1 || args.dim > 256) return "dim is " + std::to_string(args.dim) + ", not 1 to 256";
  if (args.value_dim < 1 || args.value_dim > 256) {
    return "value_dim is " + std::to_string(args.value_dim) + ", not 1 to 256";
  }
  if (args.bias.has_time() && args.bias.num_time_bounds > TimeTable::kMostBounds) {
    return "there are more than " + std::to_string(TimeTable::kMostBounds) + " time bounds";
  }
  for (TileRows const side : {TileRows::kQueries, TileRows::kKeys}) {
    // Tile numbers are 32-bit; the factor 2 leaves room for one step of the grid beyond the last.
    if (num_portable_tiles(args, side, 16) > std::numeric_limits<std::int32_t>::max() / 2) {
      return "there are too many sequences and heads of this length";
    }
  }
  return "";
}

void portable_forward_async(HstuForwardArgs const& args, CudaStream stream) {
  with_portable_dim(args, [&](auto dim) { portable_forward_of_dim<dim()>(args, stream); });
}

std::size_t portable_backward_workspace_bytes(HstuBackwardArgs const& args) {
  return PortablePartials(args, nullptr).size_bytes();
}

void portable_backward_async(HstuBackwardArgs const& args, CudaStream stream, void* workspace) {
  PortablePartials const partials(args, workspace);
  std::int64_t const num_partials = with_portable_dim(
      args.forward, [&](auto dim) { return portable_backward_of_dim<dim()>(args, partials, stream); });
  sum_partials_async(partials.position, num_partials, partials.position_size, args.grad_position_weights, stream);
  sum_partials_async(partials.time, num_partials, partials.time_size, args.grad_time_weights, stream);
}

}  // namespace headway::kernels
