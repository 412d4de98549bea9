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

/// Of key `i`.
template <kernels::OptimizerKind kKind>
__device__ QuadUpdate load_update(UpdateArgs const& args, RowId row, std::uint32_t i, std::uint32_t quad) {
  std::uint32_t const dim = args.rows.dim;
  QuadUpdate update{.gradient = read_quad(args.gradients + std::uint64_t{i} * dim, quad, dim),
                    .weights = args.rows.read(row, quad)};
  if constexpr (num_states(kKind) > 0) update.first = read_quad(args.rows.state(row), quad, dim);
  if constexpr (num_states(kKind) > 1) update.second = read_quad(args.rows.state(row) + dim, quad, dim);
  return update;
}

__device__ void add_decay(UpdateArgs const& args, QuadUpdate& update) {
#pragma unroll
  for (std::uint32_t j = 0; j < 4; ++j) {
    update.gradient[j] = kernels::with_decay(args.factors, update.gradient[j], update.weights[j]);
  }
}

/// The same, with the decay.
template <kernels::OptimizerKind kKind>
__device__ QuadUpdate load_whole(UpdateArgs const& args, RowId row, std::uint32_t i, std::uint32_t quad) {
  auto update = load_update<kKind>(args, row, i, quad);
  add_decay(args, update);
  return update;
}

template <kernels::OptimizerKind kKind>
__device__ void apply_update(UpdateArgs const& args, RowId row, std::uint32_t i, std::uint32_t quad, float row_rate,
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
  args.rows.write_at_random(row, quad, args.keys.key(i), args.step, weights);
  if constexpr (num_states(kKind) > 0) write_quad(args.rows.state(row), quad, dim, first);
  if constexpr (num_states(kKind) > 1) write_quad(args.rows.state(row) + dim, quad, dim, second);
}

/// Adds each of the values up over all lanes of a row, in an order that is always the same. Their shuffles are under
/// way together.
template <std::uint32_t kCount>
__device__ void add_up_over(RowLanes lanes, float (&values)[kCount]) {
  for (std::uint32_t distance = lanes.count() / 2; distance > 0; distance /= 2) {
#pragma unroll
    for (float& value : values) value += __shfl_xor_sync(kAllLanes, value, static_cast<int>(distance));
  }
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

/// Rows of a thread, whose loads are under way at a time. On an H200 four of row-wise Adagrad take 5% longer, one of
/// Adam 4%; so does Adam where registers hold three blocks instead of four.
constexpr std::uint32_t kRows = 2;
/// Keys that the lanes of a row have together, if there are so many lanes. With more a small batch has too few warps.
constexpr std::uint32_t kKeys = 16;

/// What one lane finds for all lanes of a row.
struct FoundRow {
  RowId id = RowId::kNone;
  float state = 0;  ///< Of a row-wise optimizer.
};

template <kernels::OptimizerKind kKind>
__device__ FoundRow find_row(UpdateArgs const& args, std::uint32_t i) {
  FoundRow found{.id = RowLimits(*args.state).checked(args.row_ids[i], *args.state)};
  if (found.id == RowId::kNone) {
    count_one(&args.state->statistics.dropped_gradients);
  } else if constexpr (is_row_wise(kKind)) {
    found.state = args.rows.row_state(found.id);
  }
  return found;
}

// The lanes of a row find the rows of some keys, one each, and then update them together, a few at a time, for which
// they load the first columns of all before they wait for one. With dim 32 lanes 0 to 7 have keys 0 to 7, and lanes 8
// to 15 keys 8 to 15. Those beyond the batch go along, as lanes add up with each other.
template <kernels::OptimizerKind kKind>
__global__ void __launch_bounds__(kBlockThreads, 4)
    update_kernel(__grid_constant__ UpdateArgs const args, RowLanes lanes, std::uint32_t num_keys) {
  __shared__ FoundRow found[kBlockThreads];
  std::uint64_t const thread = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  std::uint32_t const lane = static_cast<std::uint32_t>(thread) & (lanes.count() - 1);
  std::uint32_t const num_quads = args.rows.num_quads(), dim = args.rows.dim, size = args.keys.size();
  if ((thread / kWarp * kWarp >> lanes.shift) * num_keys >= size) return;
  auto const first = static_cast<std::uint32_t>(thread >> lanes.shift) * num_keys;
  bool const has_key = lane < num_keys && first + lane < size;
  found[threadIdx.x] = has_key ? find_row<kKind>(args, first + lane) : FoundRow{};
  __syncwarp();
  for (std::uint32_t key = 0; key < num_keys; key += kRows) {
    FoundRow rows[kRows];
    QuadUpdate updates[kRows];
#pragma unroll
    for (std::uint32_t r = 0; r < kRows; ++r) {
      if (key + r < num_keys) rows[r] = found[threadIdx.x - lane + key + r];
    }
#pragma unroll
    for (std::uint32_t r = 0; r < kRows; ++r) {
      if (rows[r].id == RowId::kNone || lane >= num_quads) continue;
      updates[r] = load_update<kKind>(args, rows[r].id, first + key + r, lane);
    }
    float rates[kRows]{};
    if constexpr (is_row_wise(kKind)) {
      float sums[kRows]{};
#pragma unroll
      for (std::uint32_t r = 0; r < kRows; ++r) {
        if (rows[r].id == RowId::kNone || lane >= num_quads) continue;
        add_decay(args, updates[r]);
        sums[r] = squares_of(updates[r].gradient);
        for (std::uint32_t quad = lane + lanes.count(); quad < num_quads; quad += lanes.count()) {
          sums[r] += squares_of(load_whole<kKind>(args, rows[r].id, first + key + r, quad).gradient);
        }
      }
      add_up_over(lanes, sums);
#pragma unroll
      for (std::uint32_t r = 0; r < kRows; ++r) {
        rates[r] = row_rate<kKind>(args.factors, rows[r].state, sums[r] / static_cast<float>(dim));
        if (lane == 0 && rows[r].id != RowId::kNone) args.rows.row_state(rows[r].id) = rows[r].state;
      }
    }
#pragma unroll
    for (std::uint32_t r = 0; r < kRows; ++r) {
      if (rows[r].id == RowId::kNone || lane >= num_quads) continue;
      if constexpr (!is_row_wise(kKind)) add_decay(args, updates[r]);
      apply_update<kKind>(args, rows[r].id, first + key + r, lane, rates[r], updates[r]);
    }
    // Further columns, when registers have no first ones any more.
    for (std::uint32_t quad = lane + lanes.count(); quad < num_quads; quad += lanes.count()) {
#pragma unroll
      for (std::uint32_t r = 0; r < kRows; ++r) {
        if (rows[r].id == RowId::kNone) continue;
        std::uint32_t const i = first + key + r;
        apply_update<kKind>(args, rows[r].id, i, quad, rates[r], load_whole<kKind>(args, rows[r].id, i, quad));
      }
    }
  }
}

template <kernels::OptimizerKind kKind>
void update_async(UpdateArgs const& args, cudaStream_t stream) {
  RowLanes const lanes(args.rows.num_quads());
  std::uint32_t const num_keys = std::min(kKeys, lanes.count());
  std::uint64_t const num_groups = (std::uint64_t{args.keys.size.most} + num_keys - 1) / num_keys;
  update_kernel<kKind><<<num_blocks(num_groups << lanes.shift), kBlockThreads, 0, stream>>>(args, lanes, num_keys);
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
