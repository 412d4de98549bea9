// SPDX-License-Identifier: Apache-2.0

// Optimizer steps on the GPU: update() and update_bags(). One kernel, update_kernel, reads gradients, rows and
// optimizer states, and writes rows and states. update_bags() passes the sums of a SegmentedSum (for each key, over the
// bags that it is in) instead of gradients, so a gradient of few terms is summed where it is applied and never goes
// through memory.
//
// Idea: an update moves every byte of a row once in and once out, so it is bound by memory traffic and by the latency
// of random rows. The kernel keeps the loads of kRows rows in flight, and it fuses the sum of gradients, weight
// decay, optimizer and rounding, so that no intermediate value is stored.
//
// Row-wise optimizers need the mean of squares over all columns of a row before they can change one. They read the
// gradients twice if the row has more quads than lanes: once for the sum of squares, once for the update. The first
// quad of each lane stays in registers in between.
//
// Example: row-wise Adagrad, dim 8, lanes 2 (one quad each), gradient 1 in all columns. Each lane sums 4 squares; the
//  shuffle makes 8 in both; the mean is 1. row_rate_of_adagrad() adds it to the row's state and returns its rate.
//
// Invariants: no row repeats in a call, so a row has one writer and needs no atomics. Sums over lanes use the same tree
//  in each run, so updates are deterministic. bfloat16 rows round with random bits of (key, column, step).
// Complexity: reads and writes of dim * (1 + states) floats per row, plus one read per gradient term. Formulas:
// kernels/include/headway/kernels/weight_update.hpp, shared with the CPU.

#include "cuda/deduplication/segmented_sum.cuh"
#include "cuda/rows/free_rows.cuh"
#include "cuda/runtime/launch.cuh"
#include "cuda/table/cuda_table.hpp"
#include "expect_batch.hpp"
#include "headway/base/status.hpp"
#include "headway/kernels/weight_update.hpp"

#include <array>

namespace headway::embedding {

namespace {

/// Arguments of update_kernel.
struct UpdateArgs {
  RowsView rows;
  TableState* state;
  KeysView keys;
  RowId const* row_ids;
  kernels::UpdateFactors factors;
  std::uint64_t step;
};

/// Gradients given by the caller, one per key. Same interface as SegmentedSumView: a segment is the list of terms of
/// one key's gradient. Here it always has one term with weight 1, so the kernel's code for longer sums disappears.
struct GivenGradients {
  float const* values;  ///< (keys, dim)
  std::uint32_t dim;

  struct Segment {
    float const* row;

    [[nodiscard]] __device__ static constexpr bool has_one_term() { return true; }
    __device__ void weigh(Quad& /*values*/) const {}
  };

  [[nodiscard]] __device__ Segment segment(std::uint32_t i) const { return {values + std::uint64_t{i} * dim}; }
  [[nodiscard]] __device__ Quad first_of(Segment const& segment, std::uint32_t quad) const {
    return read_quad(segment.row, quad, dim, LoadConstant());
  }
  template <std::uint32_t kInFlight>
  [[nodiscard]] __device__ Quad sum_of(Segment const& segment, std::uint32_t quad) const {
    return first_of(segment, quad);
  }
};

/// Four columns of a row with their gradient and optimizer states (first and second moment, or sum of squares).
struct QuadUpdate {
  Quad gradient{}, weights{}, first{}, second{};
};

/// State floats per column.
[[nodiscard]] constexpr int num_states(kernels::OptimizerKind kind) {
  using Kind = kernels::OptimizerKind;
  return kind == Kind::kAdam ? 2 : kind == Kind::kAdagrad || kind == Kind::kRowWiseAdam ? 1 : 0;
}
[[nodiscard]] constexpr bool is_row_wise(kernels::OptimizerKind kind) {
  return kind == kernels::OptimizerKind::kRowWiseAdagrad || kind == kernels::OptimizerKind::kRowWiseAdam;
}

/// Loads weights and states of four columns.
template <kernels::OptimizerKind kKind>
__device__ void load_row(UpdateArgs const& args, RowId row, std::uint32_t quad, QuadUpdate& update) {
  std::uint32_t const dim = args.rows.dim;
  update.weights = args.rows.read(row, quad);
  if constexpr (num_states(kKind) > 0) update.first = read_quad(args.rows.state(row), quad, dim);
  if constexpr (num_states(kKind) > 1) update.second = read_quad(args.rows.state(row) + dim, quad, dim);
}

/// Adds the weight decay to the gradient.
__device__ void add_decay(UpdateArgs const& args, QuadUpdate& update) {
#pragma unroll
  for (std::uint32_t j = 0; j < 4; ++j) {
    update.gradient[j] = kernels::with_decay(args.factors, update.gradient[j], update.weights[j]);
  }
}

/// Applies the optimizer to four columns, and writes weights (rounded stochastically in bfloat16 rows) and states.
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
  args.rows.write_stochastically(row, quad, args.keys.key(i), args.step, weights);
  if constexpr (num_states(kKind) > 0) write_quad(args.rows.state(row), quad, dim, first);
  if constexpr (num_states(kKind) > 1) write_quad(args.rows.state(row) + dim, quad, dim, second);
}

/// Sums each value over all lanes of a row, in a fixed order. The shuffles of the values overlap.
template <std::uint32_t kCount>
__device__ void sum_over_lanes(RowLanes lanes, float (&values)[kCount]) {
  for (std::uint32_t distance = lanes.count() / 2; distance > 0; distance /= 2) {
#pragma unroll
    for (float& value : values) value += __shfl_xor_sync(kAllLanes, value, static_cast<int>(distance));
  }
}

__device__ float squares_of(Quad const& values) {
  return values[0] * values[0] + values[1] * values[1] + values[2] * values[2] + values[3] * values[3];
}

/// Updates the state of a row-wise optimizer (one float per row). @returns the learning rate of the row's weights
template <kernels::OptimizerKind kKind>
__device__ float row_rate(kernels::UpdateFactors const& by, float& row_state, float mean_of_squares) {
  if constexpr (kKind == kernels::OptimizerKind::kRowWiseAdagrad) {
    return kernels::row_rate_of_adagrad(by, row_state, mean_of_squares);
  } else {
    return kernels::row_rate_of_adam(by, row_state, mean_of_squares);
  }
}

/// Rows per thread whose loads overlap. Measured on an H200: with 4 rows, row-wise Adagrad takes 5% longer. With 1 row,
/// Adam takes 4% longer; so it does if registers allow 3 blocks per SM instead of 4.
constexpr std::uint32_t kRows = 2;

/// Terms of a gradient whose loads overlap. Beside the states of Adam, registers do not hold more.
template <kernels::OptimizerKind kKind>
constexpr std::uint32_t kTerms = num_states(kKind) > 0 ? 2 : 4;

/// A row that one lane looked up for all lanes of the row (shared memory).
template <class Gradients>
struct FoundRow {
  RowId id;
  float state;  ///< State of a row-wise optimizer, else 0.
  typename Gradients::Segment gradient;
};

/// Looks up the row and gradient of key `i`. Counts a dropped gradient if the key has no row.
template <kernels::OptimizerKind kKind, class Gradients>
__device__ FoundRow<Gradients> find_row(UpdateArgs const& args, Gradients const& gradients, std::uint32_t i) {
  RowId const id = RowLimits(*args.state).checked(args.row_ids[i], *args.state);
  if (id == RowId::kNone) {
    count_one(&args.state->statistics.dropped_gradients);
    return {};
  }
  float const state = is_row_wise(kKind) ? args.rows.row_state(id) : 0;
  return {.id = id, .state = state, .gradient = gradients.segment(i)};
}

/// Loads gradient, weights and states of four columns, and adds the decay.
template <kernels::OptimizerKind kKind, class Gradients>
__device__ QuadUpdate load_whole(UpdateArgs const& args, Gradients const& gradients, FoundRow<Gradients> const& row,
                                 std::uint32_t quad) {
  QuadUpdate update{.gradient = gradients.template sum_of<kTerms<kKind>>(row.gradient, quad)};
  load_row<kKind>(args, row.id, quad, update);
  add_decay(args, update);
  return update;
}

// The lanes of a row look up the rows of a group of keys (KeyGroups), then update them kRows at a time. They load the
// first quad of columns of all kRows rows before they wait for one of them. A gradient of several terms is summed
// before that, while registers are free. Lanes beyond the batch take part: sum_over_lanes() shuffles among all lanes.
template <kernels::OptimizerKind kKind, class Gradients>
__global__ void __launch_bounds__(kBlockThreads, 4)
    update_kernel(__grid_constant__ UpdateArgs const args, __grid_constant__ Gradients const gradients,
                  KeyGroups groups) {
  __shared__ FoundRow<Gradients> found[kBlockThreads];
  std::uint32_t const num_quads = args.rows.num_quads(), dim = args.rows.dim, size = args.keys.size();
  if (groups.is_warp_beyond(size)) return;
  RowLanes const lanes = groups.lanes;
  std::uint32_t const lane = groups.lane(), first = groups.first_key();
  bool const has_key = lane < groups.num_keys && first + lane < size;
  found[threadIdx.x] = has_key ? find_row<kKind>(args, gradients, first + lane) : FoundRow<Gradients>{};
  __syncwarp();
  for (std::uint32_t key = 0; key < groups.num_keys; key += kRows) {
    FoundRow<Gradients> const* const rows = found + (threadIdx.x - lane) + key;
    RowId ids[kRows];
    float squares[kRows]{};
    QuadUpdate updates[kRows];
#pragma unroll
    for (std::uint32_t r = 0; r < kRows; ++r) {
      ids[r] = key + r < groups.num_keys ? rows[r].id : RowId::kNone;
      if (ids[r] == RowId::kNone) continue;
      for (std::uint32_t quad = lane + lanes.count(); is_row_wise(kKind) && quad < num_quads; quad += lanes.count()) {
        squares[r] += squares_of(load_whole<kKind>(args, gradients, rows[r], quad).gradient);
      }
      if (lane >= num_quads || rows[r].gradient.has_one_term()) continue;
      updates[r].gradient = gradients.template sum_of<kTerms<kKind>>(rows[r].gradient, lane);
    }
#pragma unroll
    for (std::uint32_t r = 0; r < kRows; ++r) {
      if (ids[r] == RowId::kNone || lane >= num_quads) continue;
      if (rows[r].gradient.has_one_term()) updates[r].gradient = gradients.first_of(rows[r].gradient, lane);
      load_row<kKind>(args, ids[r], lane, updates[r]);
    }
#pragma unroll
    for (std::uint32_t r = 0; r < kRows; ++r) {
      if (ids[r] == RowId::kNone || lane >= num_quads) continue;
      if (rows[r].gradient.has_one_term()) rows[r].gradient.weigh(updates[r].gradient);
      add_decay(args, updates[r]);
    }
    float rates[kRows]{};
    if constexpr (is_row_wise(kKind)) {
#pragma unroll
      for (std::uint32_t r = 0; r < kRows; ++r) {
        if (ids[r] != RowId::kNone && lane < num_quads) squares[r] += squares_of(updates[r].gradient);
      }
      sum_over_lanes(lanes, squares);
#pragma unroll
      for (std::uint32_t r = 0; r < kRows; ++r) {
        if (ids[r] == RowId::kNone) continue;
        float state = rows[r].state;
        rates[r] = row_rate<kKind>(args.factors, state, squares[r] / static_cast<float>(dim));
        if (lane == 0) args.rows.row_state(ids[r]) = state;
      }
    }
#pragma unroll
    for (std::uint32_t r = 0; r < kRows; ++r) {
      if (ids[r] == RowId::kNone || lane >= num_quads) continue;
      apply_update<kKind>(args, ids[r], first + key + r, lane, rates[r], updates[r]);
    }
    // Further columns, after the registers of the first ones are free.
    for (std::uint32_t quad = lane + lanes.count(); quad < num_quads; quad += lanes.count()) {
#pragma unroll
      for (std::uint32_t r = 0; r < kRows; ++r) {
        if (ids[r] == RowId::kNone) continue;
        apply_update<kKind>(args, ids[r], first + key + r, quad, rates[r],
                            load_whole<kKind>(args, gradients, rows[r], quad));
      }
    }
  }
}

template <kernels::OptimizerKind kKind, class Gradients>
void update_async(UpdateArgs const& args, Gradients const& gradients, cudaStream_t stream) {
  KeyGroups const groups(args.rows.num_quads());
  update_kernel<kKind><<<groups.blocks(args.keys.size.most), kBlockThreads, 0, stream>>>(args, gradients, groups);
  base::check_launch("update_kernel");
}

template <class Gradients>
void update_async(kernels::OptimizerKind kind, UpdateArgs const& args, Gradients const& gradients,
                  cudaStream_t stream) {
  using Kind = kernels::OptimizerKind;
  switch (kind) {
    case Kind::kSgd:
      return update_async<Kind::kSgd>(args, gradients, stream);
    case Kind::kAdagrad:
      return update_async<Kind::kAdagrad>(args, gradients, stream);
    case Kind::kRowWiseAdagrad:
      return update_async<Kind::kRowWiseAdagrad>(args, gradients, stream);
    case Kind::kAdam:
      return update_async<Kind::kAdam>(args, gradients, stream);
    case Kind::kRowWiseAdam:
      return update_async<Kind::kRowWiseAdam>(args, gradients, stream);
  }
}

}  // namespace

void CudaTable::update(Keys const& keys, std::span<RowId const> rows, std::span<float const> gradients,
                       kernels::OptimizerStep const& step) {
  expect_one_each(keys, rows.size(), "rows");
  expect_values(keys, gradients.size(), options_.dim, "gradients");
  auto const factors = optimizer_.factors(step);
  Call const call(*this);
  if (keys.size() == 0) return;
  GivenGradients const given{gradients.data(), rows_.view().dim};
  update_async(options_.optimizer.kind, {rows_.view(), state_.data(), view_of(keys), rows.data(), factors, step.number},
               given, call.stream());
}

void CudaTable::update_bags(Keys const& keys, std::span<RowId const> rows, CsrMap const& csr, Bags const& bags,
                            std::span<float const> gradients, kernels::OptimizerStep const& step) {
  expect_one_each(keys, rows.size(), "rows");
  std::size_t const num_keys = expect_csr(keys, csr), num_bags = count_bags(num_keys, bags);
  base::expects(gradients.size() == num_bags * options_.dim, "gradients do not have a row for each bag");
  auto const factors = optimizer_.factors(step);
  Call const call(*this);
  if (keys.size() == 0) return;
  KeysView const batch = view_of(keys);
  SegmentedSum const sums({csr, batch.size}, num_keys, bags, options_.dim, gradients.data(), call.stream());
  update_async(options_.optimizer.kind, {rows_.view(), state_.data(), batch, rows.data(), factors, step.number},
               sums.view(), call.stream());
}

}  // namespace headway::embedding
