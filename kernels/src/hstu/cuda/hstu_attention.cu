// SPDX-License-Identifier: Apache-2.0

// HSTU attention on CUDA devices: chooses the kernels of a call, lays out its workspace, and enqueues a preparation
// kernel before them.
//
// The kernels in sm90/ need 16-bit elements, one of four dims and aligned rows; sm80/ takes everything else. The
// choice depends on host values only, so a call never waits for the device.
//
// Example: bfloat16, dim = value_dim = 48 on an H100. sm90/ refuses 48, but takes 64: choose_hstu_kernels() tells the
// caller that a copy with 64 columns pays. Called without a copy, the sm_80 kernels run.

#include "headway/base/cuda_check.hpp"
#include "headway/kernels/hstu_attention_cuda.hpp"
#include "hstu/check_arguments.hpp"
#include "hstu/cuda/preparation.hpp"
#include "hstu/cuda/prepare.cuh"
#include "hstu/cuda/sm80/attention.hpp"
#include "hstu/cuda/sm90/attention.hpp"
#include "hstu/cuda/sm90/backward/plan.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace headway::kernels {
namespace {

#if defined(HEADWAY_HAS_SM90_KERNELS)
constexpr bool kHasSm90Kernels = true;
#else
constexpr bool kHasSm90Kernels = false;
#endif

/// Size of the forward workspace: one counter of tiles, padded to 16 bytes.
constexpr std::int64_t kForwardWorkspaceBytes = 16;

/// Do the sm_90a kernels take the arguments on the current device? Only called if the build has them.
template <class Args>
[[nodiscard]] bool fits_sm90(Args const& args) {
  return base::device_attribute(cudaDevAttrComputeCapabilityMajor) == 9 && why_not_sm90(args).empty();
}

/// Refuses arguments that no kernel of this build takes.
/// @throws std::invalid_argument with the reason
void expect_sm80(HstuForwardArgs const& args) {
  std::string why = why_not_sm80(args);
  if (base::device_attribute(cudaDevAttrComputeCapabilityMajor) < 8)
    why = "the device is of compute capability below 8.0";
  if (!why.empty()) throw std::invalid_argument("hstu_attention: no CUDA kernel for this: " + why);
}

/// Launches the preparation kernel, which runs before the kernels of a call.
void prepare_async(HstuPreparation const& preparation, CudaStream stream) {
  std::int64_t const num_blocks = preparation.num_blocks(base::device_attribute(cudaDevAttrMultiProcessorCount));
  constexpr int kThreads = HstuPreparation::kThreads;
  prepare_hstu_kernel<kThreads><<<static_cast<unsigned>(num_blocks), kThreads, 0, stream>>>(preparation);
  base::check_cuda(cudaGetLastError(), "prepare_hstu_kernel");
}

/// Registers the gradients of bias weights for clearing: kernels add to them atomically.
void clear_weight_gradients(HstuBackwardArgs const& args, HstuPreparation& preparation) {
  HstuBias const& bias = args.forward.bias;
  constexpr std::int64_t kBytes = sizeof(float);
  if (bias.has_position()) {
    preparation.clear(args.grad_position_weights, (2 * bias.max_position_distance - 1) * kBytes);
  }
  if (bias.has_time()) preparation.clear(args.grad_time_weights, (bias.num_time_bounds + 1) * kBytes);
}

/// Registers for clearing all memory that the sm_90a kernels add to: gradients of bias weights and the workspace.
void clear_what_is_added_to(HstuBackwardArgs const& args, void* workspace, HstuPreparation& preparation) {
  clear_weight_gradients(args, preparation);
  int const num_multiprocessors = base::device_attribute(cudaDevAttrMultiProcessorCount);
  BackwardWork const work = backward_work(args.forward, num_multiprocessors);
  preparation.clear(workspace, Sm90BackwardWorkspace(args.forward, work, num_multiprocessors).cleared_bytes);
}

[[nodiscard]] bool has_queries(HstuForwardArgs const& args) {
  return args.sequences.num_sequences > 0 && args.sequences.num_queries > 0 && args.sequences.max_queries > 0;
}

/// Replaces rows by contiguous ones. Only their layout is tested, so address 0 stands for an aligned one.
template <class Pointer>
void set_contiguous(HstuForwardArgs const& args, std::int32_t columns, JaggedHeads<Pointer>& rows) {
  rows = {.data = nullptr, .token_stride = std::int64_t{args.num_heads} * columns, .head_stride = columns};
}

/// Arguments as they would be after the caller copied rows to contiguous ones of `columns` columns. Used to test
/// whether a copy lets the faster kernels run.
[[nodiscard]] HstuForwardArgs copied(HstuForwardArgs args, std::int32_t columns) {
  args.dim = args.value_dim = columns;
  for (auto* rows : {&args.query, &args.key, &args.value}) set_contiguous(args, columns, *rows);
  set_contiguous(args, columns, args.out);
  return args;
}

[[nodiscard]] HstuBackwardArgs copied(HstuBackwardArgs args, std::int32_t columns) {
  args.forward = copied(args.forward, columns);
  set_contiguous(args.forward, columns, args.grad_out);
  for (auto* rows : {&args.grad_query, &args.grad_key, &args.grad_value}) set_contiguous(args.forward, columns, *rows);
  return args;
}

[[nodiscard]] HstuForwardArgs const& forward_of(HstuForwardArgs const& args) { return args; }
[[nodiscard]] HstuForwardArgs const& forward_of(HstuBackwardArgs const& args) { return args.forward; }

/// Chooses kernels for a call. If the faster kernels refuse the arguments, it tries a copy: of the widths that they
/// take, the narrowest that holds dim and value_dim.
template <class Args>
[[nodiscard]] HstuKernelChoice choose_kernels(Args const& args) {
  if constexpr (kHasSm90Kernels) {
    HstuForwardArgs const& forward = forward_of(args);
    if (!has_queries(forward) || base::device_attribute(cudaDevAttrComputeCapabilityMajor) != 9) return {};
    std::string const why_slow = why_not_sm90(args);
    if (why_slow.empty()) return {};
    for (std::int32_t const columns : {32, 64, 128, 256}) {
      if (columns < std::max(forward.dim, forward.value_dim)) continue;
      std::string const why_slow_when_copied = why_not_sm90(copied(args, columns));
      if (why_slow_when_copied.empty()) return {.columns_when_copied = columns, .why_slow = {}};
      return {.columns_when_copied = 0, .why_slow = why_slow_when_copied};
    }
    return {.columns_when_copied = 0, .why_slow = why_slow};
  }
  return {};
}

}  // namespace

HstuKernelChoice choose_hstu_kernels(HstuForwardArgs const& args) { return choose_kernels(args); }
HstuKernelChoice choose_hstu_kernels(HstuBackwardArgs const& args) { return choose_kernels(args); }

std::size_t hstu_attention_forward_workspace_bytes(HstuForwardArgs const& /*args*/) { return kForwardWorkspaceBytes; }

void hstu_attention_forward_async(HstuForwardArgs const& args, CudaStream stream, void* workspace) {
  hstu::check_sizes(args);
  HstuPreparation preparation = preparation_of(args);
  // Nothing to compute, but rows of no sequence must become 0, and arguments are still checked.
  if (!has_queries(args)) return prepare_async(preparation, stream);
  if constexpr (kHasSm90Kernels) {
    if (fits_sm90(args)) {
      preparation.clear(workspace, kForwardWorkspaceBytes);
      prepare_async(preparation, stream);
      return sm90_forward_async(args, stream, static_cast<std::int32_t*>(workspace));
    }
  }
  expect_sm80(args);
  prepare_async(preparation, stream);
  sm80_forward_async(args, stream);
}

std::size_t hstu_attention_backward_workspace_bytes(HstuBackwardArgs const& args) {
  std::size_t const sm80_bytes = sm80_backward_workspace_bytes(args);
  if constexpr (!kHasSm90Kernels) return sm80_bytes;
  int const num_multiprocessors = base::device_attribute(cudaDevAttrMultiProcessorCount);
  BackwardWork const work = backward_work(args.forward, num_multiprocessors);
  Sm90BackwardWorkspace const layout(args.forward, work, num_multiprocessors);
  return std::max(sm80_bytes, static_cast<std::size_t>(layout.size_bytes));
}

void hstu_attention_backward_async(HstuBackwardArgs const& args, CudaStream stream, void* workspace) {
  hstu::check_sizes(args);
  HstuPreparation preparation = preparation_of(args);
  HstuSequences const& sequences = args.forward.sequences;
  bool const has_pairs = has_queries(args.forward) && sequences.num_keys > 0 && sequences.max_keys > 0;
  if constexpr (kHasSm90Kernels) {
    if (has_pairs && fits_sm90(args)) {
      clear_what_is_added_to(args, workspace, preparation);
      prepare_async(preparation, stream);
      return sm90_backward_async(args, stream, workspace);
    }
  }
  expect_sm80(args.forward);
  prepare_async(preparation, stream);
  sm80_backward_async(args, stream, workspace);
}

}  // namespace headway::kernels
