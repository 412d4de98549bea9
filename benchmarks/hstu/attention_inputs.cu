// SPDX-License-Identifier: Apache-2.0
#include "attention_inputs.hpp"
#include "cuda/element.cuh"
#include "headway/base/cuda_check.hpp"

#include <algorithm>
#include <cmath>
#include <random>

namespace headway::benchmarks {

namespace {

/// Fills `values` with numbers of mean 0 and variance 1, from a hash of the index.
__global__ void fill_random(kernels::Bfloat16* values, std::int64_t size, std::uint64_t seed) {
  std::int64_t const i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= size) return;
  std::uint64_t x = (static_cast<std::uint64_t>(i) + seed * 0x9e3779b97f4a7c15ULL) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ x >> 31) * 0x94d049bb133111ebULL;
  float sum = -2;  // The sum of four uniform numbers, less its mean.
  for (int part = 0; part < 4; ++part) sum += static_cast<float>(x >> (16 * part) & 0xffff) / 65536.0F;
  values[i] = kernels::from_float<kernels::Bfloat16>(sum * 1.7320508F);
}

}  // namespace

double AttentionPoint::forward_flops() const {
  double pairs = 0;
  for (std::int64_t const n : sequence_lengths) pairs += static_cast<double>(n) * static_cast<double>(n) / 2;
  return 4.0 * num_heads * dim * pairs;
}

void AttentionInputs::Free::operator()(void* memory) const { static_cast<void>(cudaFree(memory)); }

void* AttentionInputs::allocate(std::size_t size_bytes) {
  void* memory = nullptr;
  base::check_cuda(cudaMalloc(&memory, std::max<std::size_t>(size_bytes, 1)), "cudaMalloc");
  memory_.emplace_back(memory);
  return memory;
}

void* AttentionInputs::random_rows(std::int64_t num_elements) {
  auto* const rows = static_cast<kernels::Bfloat16*>(allocate(static_cast<std::size_t>(num_elements) * 2));
  constexpr int kThreads = 256;
  auto const num_blocks = static_cast<unsigned>((num_elements + kThreads - 1) / kThreads);
  fill_random<<<num_blocks, kThreads>>>(rows, num_elements, memory_.size());
  base::check_cuda(cudaGetLastError(), "fill_random");
  return rows;
}

template <class T>
T* AttentionInputs::copy_of(std::vector<T> const& values) {
  void* const memory = allocate(values.size() * sizeof(T));
  base::check_cuda(cudaMemcpy(memory, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice), "cudaMemcpy");
  return static_cast<T*>(memory);
}

AttentionInputs::AttentionInputs(AttentionPoint const& point) {
  std::vector<std::int64_t> offsets{0};
  for (std::int64_t const length : point.sequence_lengths) offsets.push_back(offsets.back() + length);
  std::int64_t const num_tokens = offsets.back();
  std::int64_t const max_length = *std::max_element(point.sequence_lengths.begin(), point.sequence_lengths.end());
  std::int64_t const* const device_offsets = copy_of(offsets);
  kernels::HstuForwardArgs& forward = args_.forward;
  forward.options.alpha = 1 / std::sqrt(static_cast<double>(point.dim));
  forward.options.scale = 1.0 / static_cast<double>(max_length);
  if (point.is_deterministic) forward.options.determinism = kernels::Determinism::kDeterministic;
  forward.sequences = {.num_sequences = static_cast<std::int64_t>(point.sequence_lengths.size()),
                       .query_offsets = device_offsets,
                       .key_offsets = device_offsets,
                       .num_queries = num_tokens,
                       .num_keys = num_tokens,
                       .max_queries = max_length,
                       .max_keys = max_length};
  forward.type = kernels::ElementType::kBfloat16;
  forward.num_heads = point.num_heads;
  forward.dim = forward.value_dim = point.dim;
  std::int64_t const row = std::int64_t{point.num_heads} * point.dim;
  // Pointer, stride of a token and stride of a head, in elements.
  auto const input = [&] { return kernels::JaggedHeads<void const*>{random_rows(num_tokens * row), row, point.dim}; };
  auto const output = [&] { return kernels::JaggedHeads<void*>{random_rows(num_tokens * row), row, point.dim}; };
  forward.query = input();
  forward.key = input();
  forward.value = input();
  forward.out = output();
  args_.grad_out = input();
  args_.grad_query = output();
  args_.grad_key = output();
  args_.grad_value = output();
  add_bias(point, num_tokens, max_length);
  workspace_ = allocate(std::max(kernels::hstu_attention_forward_workspace_bytes(forward),
                                 kernels::hstu_attention_backward_workspace_bytes(args_)));
}

void AttentionInputs::add_bias(AttentionPoint const& point, std::int64_t num_tokens, std::int64_t max_length) {
  kernels::HstuBias& bias = args_.forward.bias;
  if (point.bias == "position" || point.bias == "both") {
    auto const size = static_cast<std::size_t>(2 * max_length - 1);
    bias.position_weights = copy_of(std::vector<float>(size, 0.1F));
    bias.max_position_distance = max_length;
    args_.grad_position_weights = copy_of(std::vector<float>(size));
  }
  if (point.bias == "time" || point.bias == "both") {
    // Buckets of the published HSTU code: floor(ln(seconds) / 0.301).
    std::vector<float> bounds, weights{0};
    for (int i = 1; i <= 63; ++i) {
      bounds.push_back(std::exp(0.301F * static_cast<float>(i)));
      weights.push_back(0.01F * static_cast<float>(i));
    }
    // Gaps between tokens are lognormal with a median of a minute, because users act in bursts.
    std::mt19937_64 generator(1);
    std::lognormal_distribution<double> gap(std::log(60.0), 2.0);
    std::vector<std::int64_t> times;
    std::int64_t now = 1'600'000'000;
    for (std::int64_t i = 0; i < num_tokens; ++i) times.push_back(now += static_cast<std::int64_t>(gap(generator)));
    bias.time_bounds = copy_of(bounds);
    bias.num_time_bounds = static_cast<std::int64_t>(bounds.size());
    bias.time_weights = copy_of(weights);
    bias.query_times = bias.key_times = copy_of(times);
    args_.grad_time_weights = copy_of(std::vector<float>(weights.size()));
  }
}

}  // namespace headway::benchmarks
