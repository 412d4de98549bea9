#include "cuda/cuda_call.hpp"
#include "cuda/cuda_table.hpp"
#include "cuda/launch.cuh"
#include "expect_batch.hpp"
#include "headway/comm/status.hpp"
#include "headway/embedding/cuda_table.hpp"
#include "headway/kernels/row_optimizer.hpp"
#include "table_options.hpp"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

namespace headway::embedding {

namespace {

/// Memory that was given back stays with the process: calls take scratch memory all the time.
void keep_freed_memory(int device) {
  cudaMemPool_t pool = nullptr;
  check(cudaDeviceGetDefaultMemPool(&pool, device), "cudaDeviceGetDefaultMemPool");
  std::uint64_t threshold = 0;
  check(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold), "cudaMemPoolGetAttribute");
  threshold = std::max(threshold, std::uint64_t{1} << 30);
  check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold), "cudaMemPoolSetAttribute");
}

}  // namespace

std::unique_ptr<Table> make_cuda_table(TableOptions const& options, CudaPlace const& place) {
  return std::make_unique<CudaTable>(options, place);
}

CudaTable::CudaTable(TableOptions const& options, CudaPlace const& place)
    : options_(checked(options)),
      optimizer_(options.optimizer),
      place_(place),
      rows_(place_.device, options_.dim, optimizer_),
      deduplicator_(make_cuda_deduplicator(place_)) {
  DeviceScope const scope(place_.device);
  keep_freed_memory(place_.device);
  check(cudaEventCreateWithFlags(&is_done_, cudaEventDisableTiming), "cudaEventCreate");
  cudaStream_t const stream = last_stream_ = place_.stream();
  for (std::uint8_t const stripe : stripe_map_.cells()) shares_[stripe] += 1.0 / StripeMap::kNumCells;
  stripe_of_cell_ = copy_to_device(std::span<std::uint8_t const>(stripe_map_.cells()), stream);
  stripe_views_ = DeviceBuffer<StripeView>(StripeMap::kCount, stream);
  state_ = DeviceBuffer<TableState>(1, stream);
  TableState const first;
  check(cudaMemcpyAsync(state_.data(), &first, sizeof first, cudaMemcpyHostToDevice, stream), "cudaMemcpyAsync");
  make_stripes(stream);
  wait(stream);
}

CudaTable::~CudaTable() {
  static_cast<void>(cudaStreamSynchronize(last_stream_));
  static_cast<void>(cudaEventDestroy(is_done_));
}

std::size_t CudaTable::state_size() const { return rows_.view().state_size + (rows_.view().is_row_wise ? 1 : 0); }

TableState const& CudaTable::wait(cudaStream_t stream) const {
  auto const& state = mirror_.wait(state_.data(), stream);
  if (state.num_bad_rows > 0) {
    auto* const counter = &state_.data()->num_bad_rows;
    check(cudaMemsetAsync(counter, 0, sizeof *counter, stream), "cudaMemsetAsync");
    throw comm::UsageError(std::to_string(state.num_bad_rows) + " rows were given that are not of this table");
  }
  return state;
}

TableSize CudaTable::size() const {
  Call const call(*this);
  auto const& state = wait(call.stream());
  TableSize size{.rows = state.num_rows, .cold_rows = state.num_cold, .pending = state.num_pending};
  for (auto const& stripe : stripes_) size.key_bytes += stripe.num_buckets * sizeof(WideBucket);
  size.key_bytes += rows_.list_bytes();
  for (auto const precision : {Precision::kFloat32, Precision::kBfloat16}) {
    auto const& rows = state.free_rows[static_cast<std::size_t>(precision)];
    size.row_bytes += std::size_t{rows.next - 1} * rows_.row_bytes(precision);
  }
  return size;
}

TableStatistics CudaTable::statistics() const {
  Call const call(*this);
  return wait(call.stream()).statistics;
}

// Reading

void CudaTable::find(Keys const& keys, std::span<RowId> rows, std::span<KeyStatus> statuses) const {
  expect_one_each(keys, rows.size(), "rows");
  expect_one_each(keys, statuses.empty() ? keys.size() : statuses.size(), "statuses");
  Call const call(*this);
  for_each_async(
      keys.size(),
      [batch = view_of(keys), index = index(), rows = rows.data(),
       statuses = statuses.empty() ? nullptr : statuses.data()] __device__(std::uint64_t i) {
        bool const is_known = i < batch.size();
        RowId const row = is_known ? row_of(find_word(index, batch.key(static_cast<std::uint32_t>(i)))) : RowId::kNone;
        rows[i] = row;
        if (statuses != nullptr) statuses[i] = row == RowId::kNone ? KeyStatus::kAbsent : KeyStatus::kFound;
      },
      call.stream(), "find");
}

namespace {

/// The rows that there are, to check what callers give.
struct RowLimits {
  std::uint32_t next_hot, next_cold;

  __device__ explicit RowLimits(TableState const& state)
      : next_hot(state.free_rows[0].next), next_cold(state.free_rows[1].next) {}
  /// kNone, and counted, unless a row is of this table.
  __device__ RowId checked(RowId id, TableState& state) const {
    if (id == RowId::kNone) return id;
    std::uint32_t const next = precision_of(id) == Precision::kFloat32 ? next_hot : next_cold;
    bool const is_good =
        static_cast<std::uint32_t>(id) < 2 * kNumRowIds && plain_number(id) != 0 && plain_number(id) < next;
    if (is_good) return id;
    atomicAdd(&state.num_bad_rows, 1U);
    return RowId::kNone;
  }
};

struct GatherArgs {
  RowsView rows;
  TableState* state;
  KeysView keys;
  RowId const* row_ids;
  InitialValues initial_values;
  std::uint32_t const*
      numbers;  ///< (vectors) Whose vector is wanted; nullptr: one after the other, all that are known.
  std::uint32_t num_vectors;
  float* out;  ///< (vectors or bags, dim)

  [[nodiscard]] __device__ std::uint32_t size() const { return numbers == nullptr ? keys.size() : num_vectors; }
  [[nodiscard]] __device__ std::uint32_t number(std::uint32_t i) const { return numbers == nullptr ? i : numbers[i]; }
};

using Quad = std::array<float, 4>;

__device__ __noinline__ Quad initial_quad(GatherArgs const& args, std::uint32_t number, std::uint32_t quad) {
  return args.initial_values.of(args.keys.key(number), quad);
}

// Some lanes of a warp copy four rows together, with all reads of a column before the writes. With dim 64 lanes 0 to 15
// copy rows 0 to 3, and lanes 16 to 31 rows 4 to 7.
__global__ void __launch_bounds__(kBlockThreads)
    gather_kernel(__grid_constant__ GatherArgs const args, RowLanes lanes) {
  constexpr std::uint32_t kRows = 4;
  std::uint64_t const thread = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  std::uint32_t const lane = static_cast<std::uint32_t>(thread) & (lanes.count() - 1);
  auto const first = static_cast<std::uint32_t>(thread >> lanes.shift) * kRows, size = args.size();
  if (first >= size) return;
  RowLimits const limits(*args.state);
  RowId ids[kRows];
#pragma unroll
  for (std::uint32_t r = 0; r < kRows; ++r) {
    ids[r] = first + r < size ? limits.checked(args.row_ids[args.number(first + r)], *args.state) : RowId::kNone;
  }
  for (std::uint32_t quad = lane; quad < args.rows.num_quads(); quad += lanes.count()) {
    Quad values[kRows];
#pragma unroll
    for (std::uint32_t r = 0; r < kRows; ++r) {
      if (ids[r] != RowId::kNone) values[r] = args.rows.read(ids[r], quad);
    }
#pragma unroll
    for (std::uint32_t r = 0; r < kRows; ++r) {
      if (first + r >= size) break;
      if (ids[r] == RowId::kNone) values[r] = initial_quad(args, args.number(first + r), quad);
      write_quad(args.out + std::uint64_t{first + r} * args.rows.dim, quad, args.rows.dim, values[r]);
    }
  }
}

struct BagArgs {
  GatherArgs gather;
  std::int64_t const* offsets;  ///< nullptr: each key is a bag.
  float const* weights;         ///< nullptr: 1.
  std::uint32_t num_bags;
};

// Some lanes of a warp have a bag together, and read four of its rows before they add them, in order. With offsets
// 0 0 2 and numbers 5 3 row 0 of `out` is zero, and row 1 the vector of key 5 and that of key 3.
__global__ void __launch_bounds__(kBlockThreads)
    gather_bags_kernel(__grid_constant__ BagArgs const args, RowLanes lanes) {
  constexpr std::uint32_t kRows = 4;
  auto const& gather = args.gather;
  std::uint64_t const thread = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  std::uint32_t const lane = static_cast<std::uint32_t>(thread) & (lanes.count() - 1);
  std::uint64_t const bag = thread >> lanes.shift;
  if (bag >= args.num_bags) return;
  RowLimits const limits(*gather.state);
  auto const begin = static_cast<std::uint32_t>(args.offsets == nullptr ? bag : args.offsets[bag]);
  auto const end = static_cast<std::uint32_t>(args.offsets == nullptr ? bag + 1 : args.offsets[bag + 1]);
  for (std::uint32_t quad = lane; quad < gather.rows.num_quads(); quad += lanes.count()) {
    Quad sum{};
    for (std::uint32_t first = begin; first < end; first += kRows) {
      std::uint32_t numbers[kRows];
      RowId ids[kRows];
      Quad values[kRows];
#pragma unroll
      for (std::uint32_t r = 0; r < kRows; ++r) numbers[r] = gather.numbers[min(first + r, end - 1)];
#pragma unroll
      for (std::uint32_t r = 0; r < kRows; ++r) ids[r] = limits.checked(gather.row_ids[numbers[r]], *gather.state);
#pragma unroll
      for (std::uint32_t r = 0; r < kRows; ++r) {
        if (ids[r] != RowId::kNone) values[r] = gather.rows.read(ids[r], quad);
      }
#pragma unroll
      for (std::uint32_t r = 0; r < kRows; ++r) {
        if (first + r >= end) break;
        if (ids[r] == RowId::kNone) values[r] = initial_quad(gather, numbers[r], quad);
        float const weight = args.weights == nullptr ? 1 : args.weights[first + r];
#pragma unroll
        for (std::uint32_t j = 0; j < 4; ++j) sum[j] += weight * values[r][j];
      }
    }
    write_quad(gather.out + bag * gather.rows.dim, quad, gather.rows.dim, sum);
  }
}

void gather_async(GatherArgs const& args, cudaStream_t stream) {
  RowLanes const lanes(args.rows.num_quads());
  std::uint64_t const tiles = (std::uint64_t{args.num_vectors} + 3) / 4;
  gather_kernel<<<num_blocks(tiles << lanes.shift), kBlockThreads, 0, stream>>>(args, lanes);
  check_launch("gather_kernel");
}

}  // namespace

void CudaTable::gather(Keys const& keys, std::span<RowId const> rows, std::span<float> out) const {
  expect_one_each(keys, rows.size(), "rows");
  expect_values(keys, out.size(), options_.dim, "out");
  Call const call(*this);
  if (keys.size() == 0) return;
  gather_async({.rows = rows_.view(),
                .state = state_.data(),
                .keys = view_of(keys),
                .row_ids = rows.data(),
                .initial_values = options_.initializer.values(),
                .numbers = nullptr,
                .num_vectors = static_cast<std::uint32_t>(keys.size()),
                .out = out.data()},
               call.stream());
}

void CudaTable::gather_bags(Keys const& keys, std::span<RowId const> rows, std::span<std::uint32_t const> numbers,
                            Bags const& bags, std::span<float> out) const {
  expect_one_each(keys, rows.size(), "rows");
  std::size_t const num_bags = count_bags(numbers.size(), bags);
  comm::expects(out.size() == num_bags * options_.dim, "out does not have a vector for each bag");
  Call const call(*this);
  if (num_bags == 0) return;
  GatherArgs const args{.rows = rows_.view(),
                        .state = state_.data(),
                        .keys = view_of(keys),
                        .row_ids = rows.data(),
                        .initial_values = options_.initializer.values(),
                        .numbers = numbers.data(),
                        .num_vectors = static_cast<std::uint32_t>(numbers.size()),
                        .out = out.data()};
  if (bags.offsets.empty() && bags.weights.empty()) return gather_async(args, call.stream());
  RowLanes const lanes(args.rows.num_quads());
  gather_bags_kernel<<<num_blocks(std::uint64_t{num_bags} << lanes.shift), kBlockThreads, 0, call.stream()>>>(
      {.gather = args,
       .offsets = bags.offsets.empty() ? nullptr : bags.offsets.data(),
       .weights = bags.weights.empty() ? nullptr : bags.weights.data(),
       .num_bags = static_cast<std::uint32_t>(num_bags)},
      lanes);
  check_launch("gather_bags_kernel");
}

// Learning

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

void CudaTable::clear() {
  Call const call(*this);
  cudaStream_t const stream = call.stream();
  auto const& state = wait(stream);
  TableState fresh;
  fresh.statistics = state.statistics;
  fresh.statistics.erased += state.num_rows;
  fresh.statistics.forgotten += state.num_pending;
  check(cudaMemcpyAsync(state_.data(), &fresh, sizeof fresh, cudaMemcpyHostToDevice, stream), "cudaMemcpyAsync");
  make_stripes(stream);
  wait(stream);
  rows_.clear();
  ++generation_;
}

}  // namespace headway::embedding
