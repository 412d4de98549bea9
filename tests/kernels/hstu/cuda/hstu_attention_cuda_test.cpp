// SPDX-License-Identifier: Apache-2.0

// HSTU attention on a GPU against the oracle (AttentionOracle, float64): the same cases that the emulator runs.

#include "headway/kernels/hstu_attention_cuda.hpp"

#include "attention_check.hpp"
#include "device_attention.hpp"
#include "hstu/cuda/sm80/attention.hpp"
#include "short_sequence_cases.hpp"
#include "sm80_cases.hpp"

#include <gtest/gtest.h>

#include <cuda_runtime_api.h>

#include <string>

namespace headway::kernels {
namespace {

/// Kernels that the library chooses for the device, and those for sm_80 on any device.
constexpr AttentionKernels kChosen{hstu_attention_forward_async, hstu_attention_forward_workspace_bytes,
                                   hstu_attention_backward_async, hstu_attention_backward_workspace_bytes};
constexpr AttentionKernels kSm80{
    [](HstuForwardArgs const& args, CudaStream stream, void* /*workspace*/) { sm80_forward_async(args, stream); },
    [](HstuForwardArgs const& /*args*/) { return std::size_t{0}; }, sm80_backward_async, sm80_backward_workspace_bytes};

/// Element type with the largest relative errors of the output and of the gradients.
struct Precision {
  ElementType type;
  AttentionTolerance tolerance;
};
constexpr Precision kPrecisions[] = {{ElementType::kBfloat16, {5e-3, 8e-3}},
                                     {ElementType::kFloat16, {1.5e-3, 2e-3}},
                                     {ElementType::kFloat32, {2e-6, 2e-6}}};

AttentionTensors tensors_of(AttentionCase const& of, ElementType type) {
  return {of, [type](float x) { return number_of(type, bits_of(type, x)); }};
}

/// Cases on a GPU of compute capability 8.0 or later.
class HstuAttentionCuda : public testing::TestWithParam<AttentionCase> {
 protected:
  void SetUp() override {
    int count = 0, major = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "no CUDA device";
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
    if (major < 8) GTEST_SKIP() << "a GPU of compute capability below 8.0";
  }
};

TEST_P(HstuAttentionCuda, GivesWhatTheOracleSays) {
  AttentionCase const& of = GetParam();
  for (Precision const& precision : kPrecisions) {
    AttentionTensors const tensors = tensors_of(of, precision.type);
    for (AttentionKernels const& kernels : {kChosen, kSm80}) {
      expect_near_oracle(run_on_device(of, tensors, precision.type, kernels), of, tensors, precision.tolerance);
    }
  }
}

TEST_P(HstuAttentionCuda, GivesTheSameBitsEachTimeIfItIsToBeDeterministic) {
  AttentionCase of = GetParam();
  of.options.determinism = Determinism::kDeterministic;
  AttentionTensors const tensors = tensors_of(of, ElementType::kBfloat16);
  for (AttentionKernels const& kernels : {kChosen, kSm80}) {
    AttentionOutcome const first = run_on_device(of, tensors, ElementType::kBfloat16, kernels);
    expect_near_oracle(first, of, tensors, kPrecisions[0].tolerance);
    for (int i = 0; i < 5; ++i) EXPECT_EQ(run_on_device(of, tensors, ElementType::kBfloat16, kernels), first);
  }
}

INSTANTIATE_TEST_SUITE_P(OnDevice, HstuAttentionCuda, testing::ValuesIn(sm80_cases()),
                         [](auto const& of) { return of.param.name; });
/// Cases with so many sequences that the oracle takes seconds.
class ManySequencesCuda : public HstuAttentionCuda {};

TEST_P(ManySequencesCuda, GiveWhatTheOracleSaysAndTheSameBitsEachTime) {
  AttentionCase const& of = GetParam();
  AttentionTensors const tensors = tensors_of(of, ElementType::kBfloat16);
  auto const run = [&] { return run_on_device(of, tensors, ElementType::kBfloat16, kChosen); };
  AttentionOutcome const first = run();
  expect_near_oracle(first, of, tensors, kPrecisions[0].tolerance);
  for (int i = 0; i < 5; ++i) {
    AttentionOutcome again = run();
    // Gradients of bias weights are added up in any order, so they may differ.
    again.grad_position_weights = first.grad_position_weights;
    again.grad_time_weights = first.grad_time_weights;
    EXPECT_EQ(again, first);
  }
}

// 34 sequences of 6 heads. On a GPU with 132 multiprocessors, that is enough for some block of threads to take a second
// sequence.
INSTANTIATE_TEST_SUITE_P(OnDevice, ManySequencesCuda, testing::ValuesIn(short_sequence_cases(34, 6)),
                         [](auto const& of) { return of.param.name; });

TEST(Sm80Attention, SaysByNameWhatItHasNoKernelFor) {
  HstuForwardArgs args;
  args.num_heads = 1;
  args.dim = args.value_dim = 64;
  EXPECT_EQ(why_not_sm80(args), "");
  auto const expect_refusal = [&args](auto const& change, std::string const& name) {
    HstuForwardArgs changed = args;
    change(changed);
    EXPECT_NE(why_not_sm80(changed).find(name), std::string::npos) << why_not_sm80(changed);
  };
  expect_refusal([](auto& of) { of.type = ElementType::kFloat64; }, "float64");
  expect_refusal([](auto& of) { of.dim = 257; }, "dim is 257");
  expect_refusal([](auto& of) { of.value_dim = 0; }, "value_dim is 0");
  float const weight = 0;
  expect_refusal([&](auto& of) { of.bias = {.time_weights = &weight, .num_time_bounds = 1024}; }, "1023 time bounds");
  expect_refusal([](auto& of) { of.sequences = {.num_sequences = 1 << 20, .max_keys = 1 << 20}; },
                 "too many sequences");
}

}  // namespace
}  // namespace headway::kernels
