// How rows on a device learn.

#include "cuda/cuda_call.hpp"
#include "cuda/cuda_table.hpp"
#include "cuda/launch.cuh"
#include "cuda/row_limits.cuh"
#include "expect_batch.hpp"
#include "headway/kernels/weight_update.hpp"

#include <array>

namespace headway::embedding {

namespace {

struct UpdateArgs {
  RowsView rows;
  TableState* state;
  KeysView keys;
  RowId const* row_ids;
  float const* gradients;  ///< (keys, dim)
  kernels::UpdateFactors factors;
  std::uint64_t step;
};

/// Four columns of a row, with their gradient and state.
struct QuadUpdate {
  Quad gradient{}, weights{}, first{}, second{};
};

[[nodiscard]] constexpr int num_states(kernels::OptimizerKind kind) {
  using Kind = kernels::OptimizerKind;
  return kind == Kind::kAdam ? 2 : kind == Kind::kAdagrad || kind == Kind::kRowWiseAdam ? 1 : 0;
}
[[nodiscard]] constexpr bool is_row_wise(kernels::OptimizerKind kind) {
  return kind == kernels::OptimizerKind::kRowWiseAdagrad || kind == kernels::OptimizerKind::kRowWiseAdam;
}

/// @param gradient of the same columns
template <kernels::OptimizerKind kKind>
__device__ QuadUpdate load_update(UpdateArgs const& args, RowId row, std::uint32_t quad, Quad const& gradient) {
  std::uint32_t const dim = args.rows.dim;
  QuadUpdate update{.gradient = gradient, .weights = args.rows.read(row, quad)};
  if constexpr (num_states(kKind) > 0) update.first = read_quad(args.rows.state(row), quad, dim);
  if constexpr (num_states(kKind) > 1) update.second = read_quad(args.rows.state(row) + dim, quad, dim);
#pragma unroll
  for (std::uint32_t j = 0; j < 4; ++j) {
    update.gradient[j] = kernels::with_decay(args.factors, update.gradient[j], update.weights[j]);
  }
  return update;
}

template <kernels::OptimizerKind kKind>
__device__ void apply_update(UpdateArgs const& args, RowId row, std::uint64_t i, std::uint32_t quad, float row_rate,
                             QuadUpdate update) {
  using Kind = kernels::OptimizerKind;
  auto const& by = args.factors;
  auto& [gradient, weights, first, second] = update;
#pragma unroll
  for (std::uint32_t j = 0; j < 4; ++j) {
    if constexpr (kKind == Kind::kSgd) kernels::update_sgd(by, weights[j], gradient[j]);
    if constexpr (kKind == Kind::kAdagrad) kernels::update_adagrad(by, weights[j], first[j], gradient[j]);
    if constexpr (kKind == Kind::kRowWiseAdagrad) kernels::update_by_row_rate(by, row_rate, weights[j], gradient[j]);
    if constexpr (kKind == Kind::kAdam) kernels::update_adam(by, weights[j], first[j], second[j], gradient[j]);
    if constexpr (kKind == Kind::kRowWiseAdam) {
      kernels::update_moment_by_row_rate(by, row_rate, weights[j], first[j], gradient[j]);
    }
  }
  std::uint32_t const dim = args.rows.dim;
  args.rows.write_at_random(row, quad, args.keys.key(static_cast<std::uint32_t>(i)), args.step, weights);
  if constexpr (num_states(kKind) > 0) write_quad(args.rows.state(row), quad, dim, first);
  if constexpr (num_states(kKind) > 1) write_quad(args.rows.state(row) + dim, quad, dim, second);
}

/// Of all lanes of a row, in an order that is always the same.
__device__ float sum_over(RowLanes lanes, float value) {
  for (std::uint32_t distance = lanes.count() / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, static_cast<int>(distance));
  }
  return value;
}

__device__ float squares_of(Quad const& values) {
  return values[0] * values[0] + values[1] * values[1] + values[2] * values[2] + values[3] * values[3];
}

/// The next value of the one number that a row-wise optimizer keeps, and the rate of the row's weights.
template <kernels::OptimizerKind kKind>
__device__ float row_rate(kernels::UpdateFactors const& by, float& row_state, float mean_of_squares) {
  if constexpr (kKind == kernels::OptimizerKind::kRowWiseAdagrad) {
    return kernels::row_rate_of_adagrad(by, row_state, mean_of_squares);
  } else {
    return kernels::row_rate_of_adam(by, row_state, mean_of_squares);
  }
}

// Some lanes of a warp have a row together; what a lane needs first is loaded before anything is waited for. Those of
// warps beyond the batch go along, as lanes add up with each other.
template <kernels::OptimizerKind kKind>
__global__ void __launch_bounds__(kBlockThreads)
    update_kernel(__grid_constant__ UpdateArgs const args, RowLanes lanes) {
  std::uint64_t const thread = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  std::uint64_t const i = thread >> lanes.shift;
  std::uint32_t const lane = static_cast<std::uint32_t>(thread) & (lanes.count() - 1);
  std::uint32_t const num_quads = args.rows.num_quads();
  bool const is_one = i < args.keys.size();
  auto const gradient_of = [&](std::uint32_t quad) {
    return read_quad(args.gradients + i * args.rows.dim, quad, args.rows.dim);
  };
  auto const first_gradient = is_one && lane < num_quads ? gradient_of(lane) : Quad{};
  RowId const row = is_one ? RowLimits(*args.state).checked(args.row_ids[i], *args.state) : RowId::kNone;
  bool const has_row = row != RowId::kNone;
  QuadUpdate first;
  if (has_row && lane < num_quads) first = load_update<kKind>(args, row, lane, first_gradient);
  float rate = 0;
  if constexpr (is_row_wise(kKind)) {
    float row_state = has_row ? args.rows.row_state(row) : 0;
    float sum = squares_of(first.gradient);
    for (std::uint32_t quad = lane + lanes.count(); has_row && quad < num_quads; quad += lanes.count()) {
      sum += squares_of(load_update<kKind>(args, row, quad, gradient_of(quad)).gradient);
    }
    rate = row_rate<kKind>(args.factors, row_state, sum_over(lanes, sum) / static_cast<float>(args.rows.dim));
    __syncwarp();
    if (has_row && lane == 0) args.rows.row_state(row) = row_state;
  }
  if (is_one && !has_row && lane == 0) count_one(&args.state->statistics.dropped_gradients);
  if (!has_row || lane >= num_quads) return;
  apply_update<kKind>(args, row, i, lane, rate, first);
  for (std::uint32_t quad = lane + lanes.count(); quad < num_quads; quad += lanes.count()) {
    apply_update<kKind>(args, row, i, quad, rate, load_update<kKind>(args, row, quad, gradient_of(quad)));
  }
}

template <kernels::OptimizerKind kKind>
void update_async(UpdateArgs const& args, cudaStream_t stream) {
  RowLanes const lanes(args.rows.num_quads());
  update_kernel<kKind>
      <<<num_blocks(std::uint64_t{args.keys.size.most} << lanes.shift), kBlockThreads, 0, stream>>>(args, lanes);
  check_launch("update_kernel");
}

}  // namespace

void CudaTable::update(Keys const& keys, std::span<RowId const> rows, std::span<float const> gradients,
                       kernels::OptimizerStep const& step) {
  using Kind = kernels::OptimizerKind;
  expect_one_each(keys, rows.size(), "rows");
  expect_values(keys, gradients.size(), options_.dim, "gradients");
  UpdateArgs const args{.rows = rows_.view(),
                        .state = state_.data(),
                        .keys = view_of(keys),
                        .row_ids = rows.data(),
                        .gradients = gradients.data(),
                        .factors = optimizer_.factors(step),
                        .step = step.number};
  Call const call(*this);
  if (keys.size() == 0) return;
  switch (options_.optimizer.kind) {
    case Kind::kSgd:
      return update_async<Kind::kSgd>(args, call.stream());
    case Kind::kAdagrad:
      return update_async<Kind::kAdagrad>(args, call.stream());
    case Kind::kRowWiseAdagrad:
      return update_async<Kind::kRowWiseAdagrad>(args, call.stream());
    case Kind::kAdam:
      return update_async<Kind::kAdam>(args, call.stream());
    case Kind::kRowWiseAdam:
      return update_async<Kind::kRowWiseAdam>(args, call.stream());
  }
}

}  // namespace headway::embedding
