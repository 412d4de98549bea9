// SPDX-License-Identifier: Apache-2.0

// Passes of HSTU attention for sm_80 and later, run by the emulator, against the oracle (AttentionOracle, float64).
//
// Blocks of threads write partial gradients of the bias weights, which another kernel adds. AsyncTiming says when
// asynchronous copies take effect: at once (kEarly), or as late as a kernel may expect (kLate).

#include "attention_check.hpp"
#include "cuda_dialect.hpp"
#include "emulated_attention.hpp"
#include "hstu/cuda/sm80/pass.cuh"
#include "hstu/cuda/sm80/plan.hpp"
#include "hstu/cuda/sm80/sum_partials.cuh"
#include "sm80_cases.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace headway::kernels {
namespace {

using device_emulator::AsyncTiming;

/// Launches a pass on the emulator.
struct EmulatedLaunch {
  AsyncTiming timing;
  unsigned concurrent_blocks = 2;  ///< Blocks of threads that run interleaved.

  template <class Shape>
  void operator()(Sm80Params const& params, std::int64_t num_blocks) const {
    device_emulator::launch({.grid = {static_cast<unsigned>(num_blocks)},
                             .block = {Shape::kThreads},
                             .shared_bytes = sm80_shared_bytes<Shape>(params.bias),
                             .timing = timing,
                             .concurrent_blocks = concurrent_blocks},
                            [&params] { sm80_pass_kernel<Shape>(params); });
  }
};

/// Calls visit(plan) with the plan for the smallest compiled number of columns.
template <class T, class Visit>
void with_plan(HstuForwardArgs const& args, Visit const& visit) {
  std::int32_t const columns = std::max(args.dim, args.value_dim);
  if (columns <= 32) return visit(Sm80Plan<T, 32>(args));
  if (columns <= 64) return visit(Sm80Plan<T, 64>(args));
  if (columns <= 128) return visit(Sm80Plan<T, 128>(args));
  visit(Sm80Plan<T, 256>(args));
}

/// Adds up partial gradients with sum_partials_kernel().
std::vector<float> sum_of(float const* partials, std::int64_t num_partials, std::size_t size) {
  std::vector<float> sums(size, NAN);
  device_emulator::launch({.grid = {static_cast<unsigned>((size + 127) / 128)}, .block = {128}}, [&] {
    sum_partials_kernel(partials, num_partials, static_cast<std::int64_t>(size), sums.data());
  });
  return sums;
}

template <class T>
PaddedRows<T> rows_of_nan(AttentionCase const& of, std::size_t size, std::int32_t columns) {
  return {of, std::vector<float>(size, NAN), columns};
}

/// Runs both passes of a case in elements of type T. Padding must stay untouched.
template <class T>
AttentionOutcome emulate(AttentionCase const& of, AttentionTensors const& tensors, EmulatedLaunch const& launch) {
  PaddedRows<T> const query(of, tensors.query), key(of, tensors.key), value(of, tensors.value, of.value_columns()),
      grad_out(of, tensors.grad_out, of.value_columns());
  PaddedRows<T> out = rows_of_nan<T>(of, tensors.grad_out.size(), of.value_columns());
  PaddedRows<T> grad_query = rows_of_nan<T>(of, tensors.query.size(), of.dim);
  PaddedRows<T> grad_key = rows_of_nan<T>(of, tensors.key.size(), of.dim);
  PaddedRows<T> grad_value = rows_of_nan<T>(of, tensors.value.size(), of.value_columns());
  float wanted = 0;  // Any pointer but null asks for the gradients of bias weights, which go to `partials`.

  HstuBackwardArgs args{.forward = forward_args<T>(of, tensors),
                        .grad_out = grad_out.heads(),
                        .grad_query = grad_query.heads(),
                        .grad_key = grad_key.heads(),
                        .grad_value = grad_value.heads(),
                        .grad_position_weights = &wanted,
                        .grad_time_weights = &wanted};
  args.forward.query = query.heads();
  args.forward.key = key.heads();
  args.forward.value = value.heads();
  args.forward.out = out.heads();
  std::vector<float> memory(Sm80Partials(args, nullptr).size_bytes() / sizeof(float), NAN);
  Sm80Partials partials(args, memory.data());
  // Each block of threads then has several tiles.
  partials.num_blocks = std::min<std::int64_t>(partials.num_blocks, 3);
  std::int64_t num_partials = 0;
  emulate_preparation(preparation_of(args.forward));
  emulate_preparation(preparation_of(args));
  with_plan<T>(args.forward, [&](auto const& plan) {
    plan.forward(launch);
    plan.backward_of_keys(args, launch);
    num_partials = plan.backward_of_queries(args, partials, launch);
  });
  EXPECT_TRUE(out.is_padding_untouched(tensors.grad_out.size()));
  EXPECT_TRUE(grad_query.is_padding_untouched(tensors.query.size()));
  EXPECT_TRUE(grad_key.is_padding_untouched(tensors.key.size()));
  EXPECT_TRUE(grad_value.is_padding_untouched(tensors.value.size()));
  return {.out = out.values(tensors.grad_out.size()),
          .grad_query = grad_query.values(tensors.query.size()),
          .grad_key = grad_key.values(tensors.key.size()),
          .grad_value = grad_value.values(tensors.value.size()),
          .grad_position_weights = sum_of(partials.position, num_partials, tensors.position_weights.size()),
          .grad_time_weights = sum_of(partials.time, num_partials, tensors.time_weights.size())};
}

template <class T>
AttentionTensors tensors_of(AttentionCase const& of) {
  return {of, [](float x) { return to_float(from_float<T>(x)); }};
}

template <class T>
void expect_right(AttentionCase const& of, AsyncTiming timing, double tolerance) {
  auto const tensors = tensors_of<T>(of);
  expect_near_oracle(emulate<T>(of, tensors, {timing}), of, tensors, {tolerance, tolerance});
}

class Sm80 : public testing::TestWithParam<AttentionCase> {};
class Sm80FewerCases : public testing::TestWithParam<AttentionCase> {};

TEST_P(Sm80, GivesWhatTheOracleSaysInBfloat16) { expect_right<Bfloat16>(GetParam(), AsyncTiming::kLate, 4e-3); }
TEST_P(Sm80FewerCases, GivesWhatTheOracleSaysInFloat16) {
  expect_right<Float16>(GetParam(), AsyncTiming::kEarly, 5e-4);
}
TEST_P(Sm80FewerCases, GivesWhatTheOracleSaysInFloat32) { expect_right<float>(GetParam(), AsyncTiming::kLate, 1e-6); }

std::string name_of(testing::TestParamInfo<AttentionCase> const& of) { return of.param.name; }

INSTANTIATE_TEST_SUITE_P(Emulated, Sm80, testing::ValuesIn(sm80_cases()), name_of);
INSTANTIATE_TEST_SUITE_P(Emulated, Sm80FewerCases,
                         testing::ValuesIn(cases_named({"Dim32Padded", "ContextAndTargets", "PositionCachedKeys",
                                                        "TimeAndPosition", "OddColumns", "AlignedRowsOfOddColumns"})),
                         name_of);

TEST_P(Sm80FewerCases, GivesZerosBehindTheLastOffsetWhereInputsAreNotNumbers) {
  AttentionCase const& of = GetParam();
  AttentionTensors tensors = tensors_of<Bfloat16>(of);
  AttentionOutcome expected = emulate<Bfloat16>(of, tensors, {AsyncTiming::kEarly});
  tensors.add_rows_behind(of, 150);
  expected.out.resize(tensors.grad_out.size());
  expected.grad_query.resize(tensors.query.size());
  expected.grad_key.resize(tensors.key.size());
  expected.grad_value.resize(tensors.value.size());
  EXPECT_EQ(emulate<Bfloat16>(of, tensors, {AsyncTiming::kEarly}), expected);
}

TEST(Sm80Once, RowsBehindASequenceDoNotSpoilIt) {
  AttentionCase const of{.name = "Neighbours", .num_queries = {70, 30}, .num_keys = {75, 30}, .has_position = true};
  auto tensors = tensors_of<Bfloat16>(of);
  auto const expected = emulate<Bfloat16>(of, tensors, {AsyncTiming::kEarly});
  auto const columns = static_cast<std::ptrdiff_t>(of.dim);
  for (auto* rows : {&tensors.query, &tensors.grad_out}) std::fill(rows->begin() + 70 * columns, rows->end(), NAN);
  for (auto* rows : {&tensors.key, &tensors.value}) std::fill(rows->begin() + 75 * columns, rows->end(), NAN);
  auto const spoilt = emulate<Bfloat16>(of, tensors, {AsyncTiming::kEarly});
  auto const expect_same_begin = [columns](std::vector<float> const& a, std::vector<float> const& b, int rows) {
    EXPECT_TRUE(std::equal(a.begin(), a.begin() + rows * columns, b.begin()));
  };
  expect_same_begin(spoilt.out, expected.out, 70);
  expect_same_begin(spoilt.grad_query, expected.grad_query, 70);
  expect_same_begin(spoilt.grad_key, expected.grad_key, 75);
  expect_same_begin(spoilt.grad_value, expected.grad_value, 75);
}

TEST(Sm80Once, GradientsAreTheSameBitsInWhateverOrderBlocksAndThreadsRun) {
  for (AttentionCase const& of : cases_named({"TimeAndPosition"})) {
    auto const tensors = tensors_of<Bfloat16>(of);
    EXPECT_EQ(emulate<Bfloat16>(of, tensors, {AsyncTiming::kEarly, 5}),
              emulate<Bfloat16>(of, tensors, {AsyncTiming::kLate, 1}));
  }
}

}  // namespace
}  // namespace headway::kernels
