// SPDX-License-Identifier: Apache-2.0

// Kernels of one pass over statuses, weights or values of a batch. A refused key has status kNoRoom: the table has all
// the rows that it may have.
//
// Example: rows 5, kNone and inverse_indices 0 1 0. mask_weights gives 1 0 1; mask_rows clears the second of two rows.
//
// Invariants: each output is written by one thread. The count of refused keys is a sum of whole numbers, which float32
//   adds exactly up to 2^24 in any order.
// Complexity: one launch each, O(values).

#include "cuda/exchange/batch_kernels.hpp"
#include "cuda/runtime/launch.cuh"
#include "cuda/runtime/quad.cuh"
#include "headway/base/cuda_check.hpp"

namespace headway::embedding {

namespace {

// One thread per status, one atomic per block that has a refused key.
__global__ void __launch_bounds__(kBlockThreads)
    count_refused_kernel(KeyStatus const* statuses, std::uint64_t size, float* result) {
  std::uint64_t const i = std::uint64_t{blockIdx.x} * kBlockThreads + threadIdx.x;
  int const num_refused = __syncthreads_count(static_cast<int>(i < size && statuses[i] == KeyStatus::kNoRoom));
  if (threadIdx.x == 0 && num_refused > 0) atomicAdd(result, static_cast<float>(num_refused));
}

/// The weight of a batch position, or 0 if its unique key has no row.
struct MaskWeight {
  RowId const* rows;
  std::uint32_t const* inverse_indices;
  float const* weights;  ///< nullptr: 1 each.
  float* out;
  std::uint32_t num_rows;

  __device__ void operator()(std::uint64_t i) const {
    // The index of a key beyond Keys::num_known is undefined, so it may be too large.
    std::uint32_t const index = inverse_indices[i];
    float const known = index < num_rows && rows[index] != RowId::kNone ? 1 : 0;
    out[i] = weights == nullptr ? known : weights[i] * known;  // The bits of the host, also for NaN.
  }
};

struct MaskQuad {
  RowId const* rows;
  std::uint32_t dim;
  float* values;

  __device__ void operator()(std::uint32_t row, std::uint32_t quad) const {
    if (rows[row] == RowId::kNone) write_quad(values + std::uint64_t{row} * dim, quad, dim, Quad{});
  }
};

/// A factor that the host or only the device knows.
struct Factor {
  float value;
  float const* on_device;  ///< nullptr: `value`.

  [[nodiscard]] __device__ float operator()() const { return on_device == nullptr ? value : __ldg(on_device); }
};

struct Scale {
  Factor factor;

  __device__ float operator()(float value) const { return value * factor(); }
};

struct Fill {
  float with;

  __device__ float operator()(float /*value*/) const { return with; }
};

/// Changes four neighbouring values.
template <class Change>
struct ChangeFour {
  float* values;
  std::uint64_t size;
  Change change;

  __device__ void operator()(std::uint64_t four) const {
    std::uint64_t const first = 4 * four;
    auto const count = static_cast<std::uint32_t>(size - first < 4 ? size - first : 4);
    Quad changed = read_quad(values + first, 0, count);
#pragma unroll
    for (float& value : changed) value = change(value);
    write_quad(values + first, 0, count, changed);
  }
};

template <class Change>
void change_values_async(std::span<float> values, Change const& change, cudaStream_t stream, char const* name) {
  for_each_async((std::uint64_t{values.size()} + 3) / 4,
                 ChangeFour<Change>{.values = values.data(), .size = values.size(), .change = change}, stream, name);
}

}  // namespace

void count_refused_async(std::span<KeyStatus const> statuses, float* result, cudaStream_t stream) {
  base::check_cuda(cudaMemsetAsync(result, 0, sizeof *result, stream), "cudaMemsetAsync");
  if (statuses.empty()) return;
  count_refused_kernel<<<num_blocks(statuses.size()), kBlockThreads, 0, stream>>>(statuses.data(), statuses.size(),
                                                                                  result);
  base::check_launch("count_refused_kernel");
}

void mask_weights_async(std::span<RowId const> rows, std::span<std::uint32_t const> inverse_indices,
                        std::span<float const> weights, std::span<float> out, cudaStream_t stream) {
  for_each_async(inverse_indices.size(),
                 MaskWeight{.rows = rows.data(),
                            .inverse_indices = inverse_indices.data(),
                            .weights = weights.empty() ? nullptr : weights.data(),
                            .out = out.data(),
                            .num_rows = static_cast<std::uint32_t>(rows.size())},
                 stream, "MaskWeight");
}

void mask_rows_async(std::span<RowId const> rows, std::size_t dim, float* values, cudaStream_t stream) {
  auto const width = static_cast<std::uint32_t>(dim);
  for_each_quad_async(rows.size(), (width + 3) / 4, MaskQuad{.rows = rows.data(), .dim = width, .values = values},
                      stream, "MaskQuad");
}

void fill_async(std::span<float> values, float value, cudaStream_t stream) {
  change_values_async(values, Fill{value}, stream, "Fill");
}

void mark_finite_async(std::span<float const> values, float* mark, cudaStream_t stream) {
  fill_async({mark, 1}, 1, stream);
  for_each_async(
      values.size(),
      [values = values.data(), mark] __device__(std::uint64_t i) {
        if (!isfinite(values[i])) *mark = __int_as_float(0x7fffffff);  // All threads that write write the same NaN.
      },
      stream, "mark finite");
}

void scale_async(std::span<float> values, float factor, cudaStream_t stream) {
  change_values_async(values, Scale{{.value = factor, .on_device = nullptr}}, stream, "Scale");
}

void scale_by_async(std::span<float> values, float const* factor, cudaStream_t stream) {
  change_values_async(values, Scale{{.value = 1, .on_device = factor}}, stream, "Scale");
}

}  // namespace headway::embedding
