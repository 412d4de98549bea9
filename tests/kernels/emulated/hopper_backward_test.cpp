// The backward pass for sm_90a, run by the emulator.

#include "hstu/cuda/hopper_backward.cuh"

#include "attention_cases.hpp"
#include "emulated_attention.hpp"
#include "hstu/cuda/hopper_backward_plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace headway::kernels {
namespace {

using device_emulator::AsyncTiming;

template <class T, class Shape>
void launch_backward(HstuBackwardArgs const& args, AsyncTiming timing) {
  HstuForwardArgs const& forward = args.forward;
  auto const map = [&forward](JaggedHeads<void const*> const& rows, std::int64_t tokens, int tile_rows) {
    return emulated_map({rows, tokens, forward.num_heads, forward.dim, tile_rows});
  };
  HopperBackwardMaps const maps{map(forward.key, forward.sequences.num_keys, Shape::kBlockKeys),
                                map(forward.value, forward.sequences.num_keys, Shape::kBlockKeys),
                                map(forward.query, forward.sequences.num_queries, Shape::kBlockQueries),
                                map(args.grad_out, forward.sequences.num_queries, Shape::kBlockQueries)};
  HopperBackwardWorkspace const places(forward);
  std::vector<std::uint64_t> workspace(static_cast<std::size_t>(places.size_bytes) / 8 + 1);
  HopperBackwardParams params = hopper_backward_params(args, workspace.data());
  params.section_sequences = std::min(params.section_sequences, 3);
  device_emulator::launch({.grid = {2},
                           .block = {Shape::kThreads},
                           .shared_bytes = hopper_backward_shared_bytes<Shape>(forward.bias),
                           .timing = timing,
                           .concurrent_blocks = 2},
                          [&] { hopper_backward_kernel<T, Shape>(maps, params); });
  device_emulator::launch(
      {.grid = {static_cast<unsigned>(places.num_tiles), static_cast<unsigned>(forward.num_heads)}, .block = {128}},
      [&] { convert_query_sums_kernel<T, Shape>(params); });
}

template <class T, int kDim>
void launch_backward_of_dim(HstuBackwardArgs const& args, AsyncTiming timing) {
  if (args.forward.bias.has_position() || args.forward.bias.has_time()) {
    launch_backward<T, HopperBackwardShape<kDim, true>>(args, timing);
  } else {
    launch_backward<T, HopperBackwardShape<kDim, false>>(args, timing);
  }
}

template <class T>
void expect_gradients_are_right(AttentionCase const& of, AsyncTiming timing, double tolerance) {
  AttentionTensors const tensors(of, [](float x) { return to_float(from_float<T>(x)); });
  PaddedRows<T> const query(of, tensors.query), key(of, tensors.key), value(of, tensors.value);
  PaddedRows<T> const grad_out(of, tensors.grad_out);
  std::vector<float> const no_queries(tensors.query.size(), NAN), no_keys(tensors.key.size(), NAN);
  PaddedRows<T> grad_query(of, no_queries), grad_key(of, no_keys), grad_value(of, no_keys);
  std::vector<float> grad_position(tensors.position_weights.size()), grad_time(tensors.time_weights.size());
  HstuBackwardArgs args;
  args.forward = forward_args(of, tensors);
  args.forward.query = query.heads();
  args.forward.key = key.heads();
  args.forward.value = value.heads();
  args.grad_out = grad_out.heads();
  args.grad_query = grad_query.heads();
  args.grad_key = grad_key.heads();
  args.grad_value = grad_value.heads();
  if (of.has_position) args.grad_position_weights = grad_position.data();
  if (!of.time_bounds.empty()) args.grad_time_weights = grad_time.data();
  if (of.dim == 32) launch_backward_of_dim<T, 32>(args, timing);
  if (of.dim == 64) launch_backward_of_dim<T, 64>(args, timing);
  if (of.dim == 128) launch_backward_of_dim<T, 128>(args, timing);
  if (of.dim == 256) launch_backward<T, HopperWideBackwardShape>(args, timing);
  AttentionGradients const expected = AttentionOracle(of, tensors).gradients();
  EXPECT_LT(relative_error(grad_value.values(tensors.key.size()), expected.value), tolerance);
  EXPECT_LT(relative_error(grad_key.values(tensors.key.size()), expected.key), tolerance);
  EXPECT_LT(relative_error(grad_query.values(tensors.query.size()), expected.query), tolerance);
  EXPECT_LT(relative_error(grad_position, expected.position_weights), tolerance);
  EXPECT_LT(relative_error(grad_time, expected.time_weights), tolerance);
  EXPECT_TRUE(grad_query.is_padding_untouched(tensors.query.size()));
  EXPECT_TRUE(grad_key.is_padding_untouched(tensors.key.size()));
  EXPECT_TRUE(grad_value.is_padding_untouched(tensors.key.size()));
}

class HopperBackward : public testing::TestWithParam<AttentionCase> {};

TEST_P(HopperBackward, GivesTheGradientsOfTheOracle) {
  if (GetParam().dim == 256 && GetParam().has_position) GTEST_SKIP() << "not for dim 256";
  expect_gradients_are_right<Bfloat16>(GetParam(), AsyncTiming::kLate, 6e-3);
}

INSTANTIATE_TEST_SUITE_P(Emulated, HopperBackward, testing::ValuesIn(attention_cases()),
                         [](auto const& of) { return of.param.name; });

TEST(HopperBackwardOnce, AddsInTurnsIfItIsToBeDeterministic) {
  for (AttentionCase of : attention_cases()) {
    if (of.name != "Dim128" && of.name != "AllRules" && of.name != "Dim256") continue;
    of.options.determinism = Determinism::kDeterministic;
    expect_gradients_are_right<Float16>(of, AsyncTiming::kEarly, 1e-3);
  }
}

TEST(HopperBackwardOnce, GivesTheSameWhereTheLastWarpsLagBehind) {
  for (AttentionCase const& of : attention_cases()) {
    if (of.dim == 256 && of.has_position) continue;
    SCOPED_TRACE(of.name);
    expect_gradients_are_right<Bfloat16>(of, AsyncTiming::kLastLag, 6e-3);
  }
}

}  // namespace
}  // namespace headway::kernels
