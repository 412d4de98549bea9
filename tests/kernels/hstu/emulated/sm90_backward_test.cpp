// SPDX-License-Identifier: Apache-2.0

// Backward pass of HSTU attention for sm_90a, run by the emulator, against the oracle (AttentionOracle, float64).
//
// BackwardWork is what a block of threads takes at a time: a tile of keys, a head of a whole sequence, or a head of a
// sequence of one tile. With tiles, dQ is accumulated in a workspace and converted by a second kernel. AsyncTiming says
// when asynchronous operations take effect: at once (kEarly), as late as allowed (kLate), or at once while the last
// warps lag behind (kLastLag).

#include "attention_cases.hpp"
#include "bad_sequences.hpp"
#include "emulated_attention.hpp"
#include "hstu/cuda/sm90/backward/kernel.cuh"
#include "hstu/cuda/sm90/backward/plan.hpp"
#include "short_sequence_cases.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

namespace headway::kernels {
namespace {

using device_emulator::AsyncTiming;

/// Workspace of a backward pass, filled with NaN, with padding behind it.
class PaddedWorkspace {
 public:
  explicit PaddedWorkspace(Sm90BackwardWorkspace const& layout)
      : storage_(static_cast<std::size_t>(layout.size_bytes) / 4 + kPadding, NAN) {}

  [[nodiscard]] void* data() { return storage_.data(); }
  /// Is the padding still NaN?
  [[nodiscard]] bool is_padding_untouched() const {
    return std::all_of(storage_.end() - kPadding, storage_.end(), [](float x) { return std::isnan(x); });
  }

 private:
  static constexpr int kPadding = 64;

  std::vector<float> storage_;
};

/// Settings of an emulated run.
struct RunOptions {
  AsyncTiming timing = AsyncTiming::kEarly;
  unsigned num_multiprocessors = 2;
};

/// Runs preparation, backward kernel and, for tiles, the conversion of dQ.
template <class T, class Shape>
void launch_backward(HstuBackwardArgs const& args, RunOptions const& run) {
  HstuForwardArgs const& forward = args.forward;
  auto const map = [&forward](JaggedHeads<void const*> const& rows, std::int64_t tokens, int tile_rows) {
    return emulated_map({rows, tokens, forward.num_heads, forward.dim, tile_rows});
  };
  Sm90BackwardMaps const maps{map(forward.key, forward.sequences.num_keys, Shape::kBlockKeys),
                              map(forward.value, forward.sequences.num_keys, Shape::kBlockKeys),
                              map(forward.query, forward.sequences.num_queries, Shape::kBlockQueries),
                              map(args.grad_out, forward.sequences.num_queries, Shape::kBlockQueries)};
  Sm90BackwardWorkspace const layout(forward, Shape::kWork, static_cast<std::int32_t>(run.num_multiprocessors));
  PaddedWorkspace workspace(layout);
  HstuPreparation preparation = preparation_of(args);
  preparation.clear(workspace.data(), layout.cleared_bytes);
  emulate_preparation(preparation);
  Sm90BackwardParams params = sm90_backward_params(args, layout, workspace.data());
  // Several sections of sequences, although these few sequences would fit the L2 cache together (TileSchedule).
  params.section_sequences = std::min(params.section_sequences, 3);
  device_emulator::launch({.grid = {run.num_multiprocessors},
                           .block = {Shape::kThreads},
                           .shared_bytes = sm90_backward_shared_bytes<Shape>(forward.bias),
                           .timing = run.timing,
                           .concurrent_blocks = run.num_multiprocessors},
                          [&] { sm90_backward_kernel<T, Shape>(maps, params); });
  EXPECT_TRUE(workspace.is_padding_untouched());
  if (Shape::kTakesSequences) return;
  device_emulator::launch(
      {.grid = {static_cast<unsigned>(layout.num_tiles), static_cast<unsigned>(forward.num_heads)}, .block = {128}},
      [&] { convert_acc_dq_kernel<T, Shape>(params); });
}

template <class T, int kDim, BackwardWork kWork>
void launch_backward_of_dim(HstuBackwardArgs const& args, RunOptions const& run) {
  if constexpr (kDim == 256) {
    launch_backward<T, Sm90WideBackwardShape<kWork>>(args, run);
  } else if (args.forward.bias.has_position() || args.forward.bias.has_time()) {
    launch_backward<T, Sm90BackwardShape<kDim, true, kWork>>(args, run);
  } else {
    launch_backward<T, Sm90BackwardShape<kDim, false, kWork>>(args, run);
  }
}

/// @param args arguments with a dim for which kernels with `kWork` exist
template <class T, BackwardWork kWork>
void launch_backward_of_work(HstuBackwardArgs const& args, RunOptions const& run) {
  if constexpr (kWork == BackwardWork::kTiles) {
    if (args.forward.dim == 32) launch_backward_of_dim<T, 32, kWork>(args, run);
  }
  if (args.forward.dim == 64) launch_backward_of_dim<T, 64, kWork>(args, run);
  if (args.forward.dim == 128) launch_backward_of_dim<T, 128, kWork>(args, run);
  if (args.forward.dim == 256) launch_backward_of_dim<T, 256, kWork>(args, run);
}

/// Gradients of a run.
struct Gradients {
  std::vector<float> query, key, value, position_weights, time_weights;

  bool operator==(Gradients const&) const = default;
};

template <class T>
AttentionTensors tensors_of(AttentionCase const& of) {
  return {of, [](float x) { return to_float(from_float<T>(x)); }};
}

/// Runs a backward pass. Padding and the elements behind the time gradients must stay untouched.
template <class T, BackwardWork kWork>
Gradients gradients_of(AttentionCase const& of, AttentionTensors const& tensors, RunOptions const& run) {
  PaddedRows<T> const query(of, tensors.query), key(of, tensors.key), value(of, tensors.value);
  PaddedRows<T> const grad_out(of, tensors.grad_out);
  std::vector<float> const no_queries(tensors.query.size(), NAN), no_keys(tensors.key.size(), NAN);
  PaddedRows<T> grad_query(of, no_queries), grad_key(of, no_keys), grad_value(of, no_keys);
  Gradients gradients;
  gradients.position_weights.resize(tensors.position_weights.size());
  constexpr std::size_t kBehind = 16;
  gradients.time_weights.resize(tensors.time_weights.size() + kBehind);
  HstuBackwardArgs args;
  args.forward = forward_args<T>(of, tensors);
  args.forward.query = query.heads();
  args.forward.key = key.heads();
  args.forward.value = value.heads();
  args.grad_out = grad_out.heads();
  args.grad_query = grad_query.heads();
  args.grad_key = grad_key.heads();
  args.grad_value = grad_value.heads();
  if (of.has_position) args.grad_position_weights = gradients.position_weights.data();
  if (!of.time_bounds.empty()) args.grad_time_weights = gradients.time_weights.data();
  launch_backward_of_work<T, kWork>(args, run);
  EXPECT_TRUE(grad_query.is_padding_untouched(tensors.query.size()));
  EXPECT_TRUE(grad_key.is_padding_untouched(tensors.key.size()));
  EXPECT_TRUE(grad_value.is_padding_untouched(tensors.key.size()));
  EXPECT_TRUE(std::all_of(gradients.time_weights.end() - kBehind, gradients.time_weights.end(),
                          [](float grad) { return grad == 0; }));
  gradients.time_weights.resize(tensors.time_weights.size());
  gradients.query = grad_query.values(tensors.query.size());
  gradients.key = grad_key.values(tensors.key.size());
  gradients.value = grad_value.values(tensors.key.size());
  return gradients;
}

/// Expects gradients near those of the oracle.
template <class T, BackwardWork kWork>
void expect_gradients_are_right(AttentionCase const& of, RunOptions const& run, double tolerance) {
  AttentionTensors const tensors = tensors_of<T>(of);
  Gradients const gradients = gradients_of<T, kWork>(of, tensors, run);
  AttentionGradients const expected = AttentionOracle(of, tensors).gradients();
  EXPECT_LT(relative_error(gradients.value, expected.value), tolerance);
  EXPECT_LT(relative_error(gradients.key, expected.key), tolerance);
  EXPECT_LT(relative_error(gradients.query, expected.query), tolerance);
  EXPECT_LT(relative_error(gradients.position_weights, expected.position_weights), tolerance);
  EXPECT_LT(relative_error(gradients.time_weights, expected.time_weights), tolerance);
}

/// Expects finite sequences to have the same bits, whether or not the others hold NaN and infinity.
template <BackwardWork kWork>
void expect_bad_sequences_stay_apart(AttentionCase const& of) {
  AttentionTensors const clean = tensors_of<Bfloat16>(of);
  RunOptions const run{AsyncTiming::kLastLag};
  Gradients const expected = gradients_of<Bfloat16, kWork>(of, clean, run);
  for (std::size_t const first : {0, 1}) {
    BadSequences const bad(first);
    AttentionTensors tensors = clean;
    bad.plant(of, tensors);
    Gradients const gradients = gradients_of<Bfloat16, kWork>(of, tensors, run);
    std::int32_t const row = of.num_heads * of.dim;
    bad.expect_others_are(expected.query, gradients.query, tensors.query_offsets, row);
    bad.expect_others_are(expected.key, gradients.key, tensors.key_offsets, row);
    bad.expect_others_are(expected.value, gradients.value, tensors.key_offsets, row);
  }
}

/// Expects zeros in rows behind the last offset, whatever their inputs are.
template <BackwardWork kWork>
void expect_zeros_behind(AttentionCase const& of) {
  AttentionTensors tensors = tensors_of<Bfloat16>(of);
  RunOptions const run{AsyncTiming::kEarly};
  Gradients expected = gradients_of<Bfloat16, kWork>(of, tensors, run);
  tensors.add_rows_behind(of, 150);
  expected.query.resize(tensors.query.size());
  expected.key.resize(tensors.key.size());
  expected.value.resize(tensors.value.size());
  Gradients const gradients = gradients_of<Bfloat16, kWork>(of, tensors, run);
  EXPECT_EQ(gradients.query, expected.query);
  EXPECT_EQ(gradients.key, expected.key);
  EXPECT_EQ(gradients.value, expected.value);
  auto const expect_near = [](std::vector<float> const& values, std::vector<float> const& near) {
    EXPECT_LT(relative_error(values, std::vector<double>(near.begin(), near.end())), 1e-5);
  };
  expect_near(gradients.position_weights, expected.position_weights);
  expect_near(gradients.time_weights, expected.time_weights);
}

class Sm90Backward : public testing::TestWithParam<AttentionCase> {};

TEST_P(Sm90Backward, GivesTheGradientsOfTheOracle) {
  if (GetParam().dim == 256 && GetParam().has_bias()) GTEST_SKIP() << "no bias for dim 256";
  expect_gradients_are_right<Bfloat16, BackwardWork::kTiles>(GetParam(), {AsyncTiming::kLate}, 6e-3);
}

TEST_P(Sm90Backward, KeepsSequencesApartOfWhichOthersAreNotNumbers) {
  if (GetParam().dim == 256 && GetParam().has_bias()) GTEST_SKIP() << "no bias for dim 256";
  AttentionCase of = GetParam();
  of.options.determinism = Determinism::kDeterministic;  // Another order of sums would give other bits.
  expect_bad_sequences_stay_apart<BackwardWork::kTiles>(of);
}

TEST(Sm90BackwardOnce, GivesZerosBehindTheLastOffsetWhereInputsAreNotNumbers) {
  for (AttentionCase of : attention_cases()) {
    if (of.name != "Dim32Padded" && of.name != "Dim256" && of.name != "Position") continue;
    SCOPED_TRACE(of.name);
    of.options.determinism = Determinism::kDeterministic;  // Another order of sums would give other bits.
    expect_zeros_behind<BackwardWork::kTiles>(of);
    if (of.dim > 32) expect_zeros_behind<BackwardWork::kSequences>(of);
  }
}

INSTANTIATE_TEST_SUITE_P(Emulated, Sm90Backward, testing::ValuesIn(attention_cases()),
                         [](auto const& of) { return of.param.name; });

std::vector<AttentionCase> few_short_sequences() { return short_sequence_cases(12, 2); }

/// Short sequences, and all other cases whose dim has kernels for whole sequences.
std::vector<AttentionCase> sequence_cases() {
  std::vector<AttentionCase> cases = few_short_sequences();
  for (AttentionCase of : attention_cases()) {
    bool const has_kernel = of.dim == 64 || of.dim == 128 || (of.dim == 256 && !of.has_bias());
    if (has_kernel) cases.push_back(of);
    if (of.dim == 128) continue;
    of.name += "InDim128";
    of.dim = 128;
    cases.push_back(std::move(of));
  }
  return cases;
}

class Sm90BackwardOfSequences : public testing::TestWithParam<AttentionCase> {};

TEST_P(Sm90BackwardOfSequences, GivesTheGradientsOfTheOracle) {
  expect_gradients_are_right<Bfloat16, BackwardWork::kSequences>(GetParam(), {AsyncTiming::kLate}, 6e-3);
}

TEST_P(Sm90BackwardOfSequences, KeepsSequencesApartOfWhichOthersAreNotNumbers) {
  expect_bad_sequences_stay_apart<BackwardWork::kSequences>(GetParam());
}

INSTANTIATE_TEST_SUITE_P(Emulated, Sm90BackwardOfSequences, testing::ValuesIn(sequence_cases()),
                         [](auto const& of) { return of.param.name; });

TEST(Sm90BackwardOfSequencesOnce, GivesTheSameBitsWhicheverBlockOfThreadsTakesASequence) {
  for (AttentionCase const& of : few_short_sequences()) {
    if (of.has_position) continue;  // Gradients of bias weights are added up in any order.
    AttentionTensors const tensors = tensors_of<Float16>(of);
    Gradients const first = gradients_of<Float16, BackwardWork::kSequences>(of, tensors, {AsyncTiming::kEarly, 1});
    EXPECT_EQ((gradients_of<Float16, BackwardWork::kSequences>(of, tensors, {AsyncTiming::kLate, 3})), first);
  }
}

/// Kernels for sequences of one tile must also handle more tiles.
TEST(Sm90BackwardOfSequencesOnce, GivesTheGradientsOfTheOracleWhereTheyAreOfATile) {
  for (AttentionCase const& of : few_short_sequences()) {
    SCOPED_TRACE(of.name);
    for (AsyncTiming const timing : {AsyncTiming::kEarly, AsyncTiming::kLate, AsyncTiming::kLastLag}) {
      expect_gradients_are_right<Bfloat16, BackwardWork::kSequencesOfATile>(of, {timing}, 6e-3);
    }
    expect_bad_sequences_stay_apart<BackwardWork::kSequencesOfATile>(of);
  }
}

TEST(Sm90BackwardOfSequencesOnce, GivesTheGradientsOfTheOracleWhereEachBlockOfThreadsTakesOne) {
  AttentionCase of{.name = "Few", .num_queries = {60, 200}, .num_keys = {60, 200}, .dim = 128};
  expect_gradients_are_right<Bfloat16, BackwardWork::kSequences>(of, {AsyncTiming::kLate, 8}, 6e-3);
  expect_gradients_are_right<Bfloat16, BackwardWork::kSequencesOfATile>(of, {AsyncTiming::kLate, 8}, 6e-3);
}

TEST(Sm90BackwardOfSequencesOnce, StopsAtASequenceThatIsLongerThanTheLongestIsSaidToBe) {
  AttentionCase of{.name = "Longer", .num_queries = {60, 200}, .num_keys = {60, 200}, .dim = 128};
  AttentionTensors tensors = tensors_of<Bfloat16>(of);
  tensors.max_queries = tensors.max_keys = 199;
  EXPECT_THROW((gradients_of<Bfloat16, BackwardWork::kSequences>(of, tensors, {})), device_emulator::KernelError);
}

// The promised bound on the error is 4 float16 rounding units of the sum of magnitudes.
TEST(Sm90BackwardOnce, GivesGradientsOfBiasWeightsAsNearAsPromised) {
  constexpr double kEps = 1.0 / 1024;  // Unit of rounding of float16.
  std::vector<AttentionCase> cases = attention_cases();
  cases.push_back({.name = "EqualTimes",
                   .num_queries = {200, 70},
                   .num_keys = {200, 70},
                   .options = {.alpha = 0.125},
                   .has_position = true,
                   .time_bounds = {1, 2, 4},
                   .longest_gap = 0});
  for (AttentionCase const& of : cases) {
    if (!of.has_bias() || of.dim != 64 || of.hidden_weight != 0) continue;
    SCOPED_TRACE(of.name);
    AttentionTensors const tensors = tensors_of<Float16>(of);
    Gradients const gradients = gradients_of<Float16, BackwardWork::kTiles>(of, tensors, {});
    AttentionGradients const expected = AttentionOracle(of, tensors).gradients();
    auto const expect_near = [](std::vector<float> const& grads, std::vector<double> const& truth,
                                std::vector<double> const& magnitudes) {
      for (std::size_t i = 0; i < truth.size(); ++i) {
        EXPECT_LE(std::abs(grads[i] - truth[i]), 4 * kEps * magnitudes[i] + 1e-30) << "weight " << i;
      }
    };
    expect_near(gradients.position_weights, expected.position_weights, expected.position_magnitudes);
    expect_near(gradients.time_weights, expected.time_weights, expected.time_magnitudes);
  }
}

TEST(Sm90BackwardOnce, AddsTheBiasOfABucketBesideAHiddenOne) {
  expect_gradients_are_right<Bfloat16, BackwardWork::kTiles>(hidden_bucket_case(), {}, 6e-3);
}

TEST(Sm90BackwardOnce, WritesNothingBehindGradientsOfTimeWeightsWhereOneIsNotFinite) {
  for (std::vector<float> const& bounds : {std::vector<float>{100, 350}, linear_bounds(127)}) {
    AttentionCase const of{.name = "NotFinite",
                           .num_queries = {200},
                           .num_keys = {200},
                           .options = {.alpha = 0.125},
                           .time_bounds = bounds,
                           .longest_gap = 20};
    AttentionTensors tensors = tensors_of<Float16>(of);
    tensors.grad_out[tensors.grad_out.size() / 2] = INFINITY;
    Gradients const gradients = gradients_of<Float16, BackwardWork::kTiles>(of, tensors, {});
    EXPECT_TRUE(std::any_of(gradients.time_weights.begin(), gradients.time_weights.end(),
                            [](float grad) { return !std::isfinite(grad); }));
  }
}

TEST(Sm90BackwardOnce, AddsInTurnsIfItIsToBeDeterministic) {
  for (AttentionCase of : attention_cases()) {
    if (of.name != "Dim128" && of.name != "AllRules" && of.name != "Dim256") continue;
    of.options.determinism = Determinism::kDeterministic;
    expect_gradients_are_right<Float16, BackwardWork::kTiles>(of, {AsyncTiming::kEarly}, 1e-3);
  }
}

TEST(Sm90BackwardOnce, GivesTheSameWhereTheLastWarpsLagBehind) {
  for (AttentionCase const& of : attention_cases()) {
    if (of.dim == 256 && of.has_bias()) continue;
    SCOPED_TRACE(of.name);
    expect_gradients_are_right<Bfloat16, BackwardWork::kTiles>(of, {AsyncTiming::kLastLag}, 6e-3);
  }
}

TEST(Sm90BackwardOfSequencesOnce, GivesTheSameWhereTheLastWarpsLagBehind) {
  for (AttentionCase const& of : sequence_cases()) {
    SCOPED_TRACE(of.name);
    expect_gradients_are_right<Bfloat16, BackwardWork::kSequences>(of, {AsyncTiming::kLastLag}, 6e-3);
  }
}

}  // namespace
}  // namespace headway::kernels
