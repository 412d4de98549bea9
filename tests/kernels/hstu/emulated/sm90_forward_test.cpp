// SPDX-License-Identifier: Apache-2.0

// Forward pass of HSTU attention for sm_90a, run by the emulator, against the oracle (AttentionOracle, float64).
//
// AsyncTiming says when asynchronous operations take effect: at once (kEarly), as late as allowed (kLate), or at once
// while the last warps lag behind (kLastLag). A hidden bucket of time differences has a huge negative bias weight.

#include "attention_cases.hpp"
#include "bad_sequences.hpp"
#include "cuda_dialect.hpp"
#include "emulated_attention.hpp"
#include "hstu/cuda/sm90/forward/kernel.cuh"
#include "hstu/cuda/sm90/forward/plan.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace headway::kernels {
namespace {

using device_emulator::AsyncTiming;

/// Runs preparation and forward kernel with two blocks of threads.
template <class T, class Shape>
void launch_forward(HstuForwardArgs const& args, AsyncTiming timing) {
  auto const map = [&args](JaggedHeads<void const*> const& rows, std::int64_t tokens, int tile_rows) {
    return emulated_map({rows, tokens, args.num_heads, args.dim, tile_rows});
  };
  Sm90ForwardMaps const maps{map(args.query, args.sequences.num_queries, Shape::kBlockQueries),
                             map(args.key, args.sequences.num_keys, Shape::kBlockKeys),
                             map(args.value, args.sequences.num_keys, Shape::kBlockKeys)};
  std::int32_t taken = -1;  // Counter of the tiles that blocks have taken; the preparation clears it.
  HstuPreparation preparation = preparation_of(args);
  preparation.clear(&taken, sizeof taken);
  emulate_preparation(preparation);
  // kLate takes tiles from the counter; other timings use static round-robin.
  Sm90ForwardParams params = sm90_forward_params(args, timing == AsyncTiming::kLate ? &taken : nullptr);
  // Several sections of sequences, although these few sequences would fit the L2 cache together (TileSchedule).
  params.section_sequences = std::min(params.section_sequences, 3);
  device_emulator::launch({.grid = {2},
                           .block = {Shape::kThreads},
                           .shared_bytes = sm90_forward_shared_bytes<Shape>(args.bias),
                           .timing = timing,
                           .concurrent_blocks = 2},
                          [&] { sm90_forward_kernel<T, Shape>(maps, params); });
}

template <class T, int kDim>
void launch_forward_of_dim(HstuForwardArgs const& args, AsyncTiming timing) {
  if (args.bias.has_position() || args.bias.has_time()) {
    launch_forward<T, Sm90ForwardShape<kDim, true>>(args, timing);
  } else {
    launch_forward<T, Sm90ForwardShape<kDim, false>>(args, timing);
  }
}

template <class T>
AttentionTensors tensors_of(AttentionCase const& of) {
  return {of, [](float x) { return to_float(from_float<T>(x)); }};
}

/// Runs a forward pass. Padding must stay untouched.
template <class T>
std::vector<float> forward_of(AttentionCase const& of, AttentionTensors const& tensors, AsyncTiming timing) {
  PaddedRows<T> const query(of, tensors.query), key(of, tensors.key), value(of, tensors.value);
  PaddedRows<T> out(of, std::vector<float>(tensors.query.size(), NAN));
  HstuForwardArgs args = forward_args<T>(of, tensors);
  args.query = query.heads();
  args.key = key.heads();
  args.value = value.heads();
  args.out = out.heads();
  if (of.dim == 32) launch_forward_of_dim<T, 32>(args, timing);
  if (of.dim == 64) launch_forward_of_dim<T, 64>(args, timing);
  if (of.dim == 128) launch_forward_of_dim<T, 128>(args, timing);
  if (of.dim == 256) launch_forward_of_dim<T, 256>(args, timing);
  EXPECT_TRUE(out.is_padding_untouched(tensors.query.size()));
  return out.values(tensors.query.size());
}

template <class T>
void expect_forward_is_right(AttentionCase const& of, AsyncTiming timing, double tolerance) {
  AttentionTensors const tensors = tensors_of<T>(of);
  EXPECT_LT(relative_error(forward_of<T>(of, tensors, timing), AttentionOracle(of, tensors).out()), tolerance);
}

class Sm90Forward : public testing::TestWithParam<AttentionCase> {};

TEST_P(Sm90Forward, GivesWhatTheOracleSays) { expect_forward_is_right<Bfloat16>(GetParam(), AsyncTiming::kLate, 4e-3); }

INSTANTIATE_TEST_SUITE_P(Emulated, Sm90Forward, testing::ValuesIn(attention_cases()),
                         [](auto const& of) { return of.param.name; });

TEST_P(Sm90Forward, KeepsSequencesApartOfWhichOthersAreNotNumbers) {
  AttentionCase const& of = GetParam();
  AttentionTensors const clean = tensors_of<Bfloat16>(of);
  auto const expected = forward_of<Bfloat16>(of, clean, AsyncTiming::kLastLag);
  for (std::size_t const first : {0, 1}) {
    BadSequences const bad(first);
    AttentionTensors tensors = clean;
    bad.plant(of, tensors);
    auto const out = forward_of<Bfloat16>(of, tensors, AsyncTiming::kLastLag);
    bad.expect_others_are(expected, out, tensors.query_offsets, of.num_heads * of.dim);
  }
}

TEST_P(Sm90Forward, GivesZerosBehindTheLastOffsetWhereInputsAreNotNumbers) {
  AttentionCase const& of = GetParam();
  AttentionTensors tensors = tensors_of<Bfloat16>(of);
  auto expected = forward_of<Bfloat16>(of, tensors, AsyncTiming::kEarly);
  tensors.add_rows_behind(of, 150);
  expected.resize(tensors.query.size());
  EXPECT_EQ(forward_of<Bfloat16>(of, tensors, AsyncTiming::kEarly), expected);
}

TEST(Sm90ForwardOnce, GivesTheSameWhereCopiesAreEarlyAndNumbersAreFloat16) {
  for (AttentionCase const& of : attention_cases()) {
    if (of.name != "Dim128" && of.name != "Position") continue;
    expect_forward_is_right<Float16>(of, AsyncTiming::kEarly, 1e-3);
  }
}

TEST(Sm90ForwardOnce, HidesBucketsByWeightsBeyondFloat16) {
  AttentionCase const of{.name = "HiddenBuckets",
                         .num_queries = {200},
                         .num_keys = {200},
                         .options = {.alpha = 0.125},
                         .time_bounds = linear_bounds(300),
                         .longest_gap = 20,
                         .hidden_weight = -2e6F};
  expect_forward_is_right<Float16>(of, AsyncTiming::kEarly, 1e-3);
}

TEST(Sm90ForwardOnce, AddsTheBiasOfABucketBesideAHiddenOne) {
  expect_forward_is_right<Bfloat16>(hidden_bucket_case(), AsyncTiming::kEarly, 4e-3);
}

TEST(Sm90ForwardOnce, HidesPairsThatAreLookedUp) {
  expect_forward_is_right<Float16>(hidden_pairs_case(), AsyncTiming::kEarly, 1e-3);
  expect_forward_is_right<Bfloat16>(hidden_pairs_case(), AsyncTiming::kLate, 4e-3);
}

TEST(Sm90ForwardOnce, StopsAtQueriesWithoutKeysRatherThanWaitForTheirBias) {
  AttentionCase const of{.name = "NoKeys", .num_queries = {5, 9}, .num_keys = {0, 9}, .dim = 128, .has_position = true};
  try {
    expect_forward_is_right<Bfloat16>(of, AsyncTiming::kEarly, 1);
    FAIL() << "it went on";
  } catch (device_emulator::KernelError const& error) {
    EXPECT_STREQ(error.what(), "HSTU attention: sequence 0 has 5 queries, more than its 0 keys");
  }
}

TEST(Sm90ForwardOnce, GivesTheSameWhereTheLastWarpsLagBehind) {
  for (AttentionCase const& of : attention_cases()) {
    SCOPED_TRACE(of.name);
    expect_forward_is_right<Float16>(of, AsyncTiming::kLastLag, 1e-3);
  }
}

}  // namespace
}  // namespace headway::kernels
