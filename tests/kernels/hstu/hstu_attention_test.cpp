// SPDX-License-Identifier: Apache-2.0

// HSTU attention on the CPU against its definition (HstuOracle), token by token in float64. A plain loop in float32
// gives the error that is allowed.

#include "headway/kernels/hstu_attention.hpp"

#include "hstu_oracle.hpp"
#include "hstu_problem.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace headway::kernels {
namespace {

constexpr ElementType kTypes[] = {ElementType::kFloat64, ElementType::kFloat32, ElementType::kBfloat16,
                                  ElementType::kFloat16};
constexpr std::uint32_t kNumShapes = 8;  // Random shapes per element type.

/// Random shape: lengths around the size of a block, odd dims, combinations of masks and biases.
HstuShape random_shape(ElementType type, std::uint32_t seed) {
  std::mt19937 random(100 * seed + static_cast<std::uint32_t>(type));
  auto const one_of = [&](auto... values) {
    std::common_type_t<decltype(values)...> const all[] = {values...};
    return all[std::uniform_int_distribution<std::size_t>(0, sizeof...(values) - 1)(random)];
  };
  HstuShape shape;
  for (int b = one_of(1, 2, 3, 5); b > 0; --b) {
    shape.key_lengths.push_back(one_of(0, 1, 2, 17, 63, 64, 65, 150, 280));
    shape.cached_keys.push_back(std::min<std::int64_t>(one_of(0, 0, 1, 70), shape.key_lengths.back()));
  }
  shape.num_heads = one_of(1, 3);
  shape.dim = one_of(1, 7, 16, 33);
  shape.value_dim = one_of(1, 8, 20, 70);
  shape.type = type;
  shape.options = {.alpha = one_of(1., 0.3, -2.), .scale = one_of(1., 0.05)};
  shape.options.length_scaling = one_of(LengthScaling::kNone, LengthScaling::kByNumKeys);
  shape.options.mask = {.causality = one_of(Causality::kCausal, Causality::kBidirectional),
                        .window = one_of(0, 0, 1, 20, 90),
                        .full_attention_tail = one_of(0, 5)};
  shape.bias = one_of(BiasKind::kNone, BiasKind::kPosition, BiasKind::kTime, BiasKind::kBoth);
  shape.max_contextual = one_of(0, 0, 3);
  shape.max_targets = one_of(0, 0, 9, 80);
  shape.layout = one_of(HeadLayout::kTokensOutside, HeadLayout::kHeadsOutside);
  return shape;
}

/// Values rounded to an element type.
template <class Real>
std::vector<double> rounded(std::vector<Real> const& values, ElementType type) {
  Elements elements(type, 1);
  std::vector<double> all;
  for (Real const value : values) {
    elements.set(0, static_cast<double>(value));
    all.push_back(elements.get(0));
  }
  return all;
}

/// Largest errors over a tensor, of the kernel (`ours`) and of a plain loop in float32 (`plain`); `largest` is the
/// largest magnitude that is expected.
struct Error {
  double ours = 0, plain = 0, largest = 0;

  void add(double actual, double in_plain_loop, double expected) {
    // std::max would ignore NaN; this comparison keeps it.
    if (!(std::abs(actual - expected) <= ours)) ours = std::abs(actual - expected);
    plain = std::max(plain, std::abs(in_plain_loop - expected));
    largest = std::max(largest, std::abs(expected));
  }

  /// Expects an error of at most twice the plain loop's. The second term allows for another order of sums if the plain
  /// loop happens to be exact.
  void expect_small(std::string const& name, double unit) const {
    EXPECT_LE(ours, 2 * plain + 4 * unit * largest) << name << ", where a plain loop has " << plain;
  }
};

/// Unit of rounding of the accumulation type.
double unit_of(ElementType type) { return type == ElementType::kFloat64 ? 0x1p-53 : 0x1p-24; }

void expect_near(std::string const& name, JaggedTensor const& tensor, ElementType type, std::vector<float> const& plain,
                 std::vector<double> const& expected) {
  // There is no plain loop of less precision than float64, so the exact values take its place.
  bool const is_double = type == ElementType::kFloat64;
  std::vector<double> const in_type = is_double ? expected : rounded(plain, type);
  Error error;
  tensor.for_each([&](std::int64_t token, std::int64_t head, std::int64_t column) {
    auto const i = static_cast<std::size_t>(tensor.index(token, head, column));
    error.add(tensor.get(token, head, column), in_type[i], expected[i]);
  });
  error.expect_small(name, is_double ? 64 * unit_of(type) : unit_of(type));
}

void expect_near(std::string const& name, Elements const& weights, ElementType type, std::vector<float> const& plain,
                 std::vector<double> const& expected) {
  Error error;
  for (std::int64_t i = 0; i < weights.size(); ++i) {
    auto const at = static_cast<std::size_t>(i);
    error.add(weights.get(i), type == ElementType::kFloat64 ? expected[at] : plain[at], expected[at]);
  }
  error.expect_small(name, type == ElementType::kFloat64 ? 64 * unit_of(type) : unit_of(type));
}

class HstuAttentionOfType : public testing::TestWithParam<ElementType> {};

TEST_P(HstuAttentionOfType, GivesTheOutputOfItsDefinition) {
  for (std::uint32_t seed = 0; seed < kNumShapes; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    HstuProblem problem(random_shape(GetParam(), seed), seed);
    hstu_attention_forward(problem.forward(), 2);
    expect_near("out", problem.out, GetParam(), HstuOracle<float>(problem).forward(),
                HstuOracle<double>(problem).forward());
  }
}

TEST_P(HstuAttentionOfType, GivesTheGradientsOfItsDefinition) {
  for (std::uint32_t seed = 0; seed < kNumShapes; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    HstuProblem problem(random_shape(GetParam(), seed), seed);
    hstu_attention_backward(problem.backward(), 2);
    auto const plain = HstuOracle<float>(problem).backward();
    auto const exact = HstuOracle<double>(problem).backward();
    expect_near("grad_query", problem.grad_query, GetParam(), plain.query, exact.query);
    expect_near("grad_key", problem.grad_key, GetParam(), plain.key, exact.key);
    expect_near("grad_value", problem.grad_value, GetParam(), plain.value, exact.value);
    expect_near("grad_position_weights", problem.grad_position_weights, GetParam(), plain.position_weights,
                exact.position_weights);
    expect_near("grad_time_weights", problem.grad_time_weights, GetParam(), plain.time_weights, exact.time_weights);
  }
}

std::string name_of(testing::TestParamInfo<ElementType> const& type) {
  constexpr char const* kNames[] = {"Float64", "Float32", "Bfloat16", "Float16"};
  return kNames[static_cast<int>(type.param)];
}

INSTANTIATE_TEST_SUITE_P(Types, HstuAttentionOfType, testing::ValuesIn(kTypes), name_of);

/// Scalar loss: sum of output elements times their gradients.
double weighted_output(HstuProblem& problem) {
  hstu_attention_forward(problem.forward(), 1);
  double sum = 0;
  problem.out.for_each([&](std::int64_t token, std::int64_t head, std::int64_t column) {
    sum += problem.out.get(token, head, column) * problem.grad_out.get(token, head, column);
  });
  return sum;
}

/// Compares a gradient with the central difference of weighted_output().
void expect_slope(HstuProblem& problem, Elements& input, std::int64_t i, double gradient) {
  constexpr double kStep = 1e-5;
  double const value = input.get(i);
  input.set(i, value + kStep);
  double const above = weighted_output(problem);
  input.set(i, value - kStep);
  double const below = weighted_output(problem);
  input.set(i, value);
  EXPECT_NEAR((above - below) / (2 * kStep), gradient, 1e-8) << "element " << i;
}

TEST(HstuAttention, GradientsAreTheSlopesOfTheOutput) {
  HstuShape const shape{.key_lengths = {6, 1, 0, 9},
                        .cached_keys = {2, 0, 0, 0},
                        .options = {.alpha = 0.7,
                                    .scale = 0.4,
                                    .length_scaling = LengthScaling::kByNumKeys,
                                    .mask = {.window = 3, .full_attention_tail = 1}},
                        .bias = BiasKind::kBoth,
                        .max_contextual = 2,
                        .max_targets = 2};
  HstuProblem problem(shape);
  hstu_attention_backward(problem.backward(), 1);
  auto const expect_slopes = [&](JaggedTensor& input, JaggedTensor const& gradient) {
    input.for_each([&](std::int64_t token, std::int64_t head, std::int64_t column) {
      expect_slope(problem, input.elements(), input.index(token, head, column), gradient.get(token, head, column));
    });
  };
  expect_slopes(problem.query, problem.grad_query);
  expect_slopes(problem.key, problem.grad_key);
  expect_slopes(problem.value, problem.grad_value);
  for (std::int64_t i = 0; i < problem.position_weights.size(); ++i)
    expect_slope(problem, problem.position_weights, i, problem.grad_position_weights.get(i));
  for (std::int64_t i = 0; i < problem.time_weights.size(); ++i)
    expect_slope(problem, problem.time_weights, i, problem.grad_time_weights.get(i));
}

TEST(HstuAttention, DoesNotDependOnTheNumberOfThreads) {
  HstuShape const shape{.key_lengths = {130, 3, 0, 300, 65},
                        .dim = 17,
                        .value_dim = 9,
                        .type = ElementType::kFloat32,
                        .bias = BiasKind::kBoth,
                        .max_targets = 10};
  HstuProblem one(shape);
  hstu_attention_forward(one.forward(), 1);
  hstu_attention_backward(one.backward(), 1);
  for (int const num_threads : {2, 5}) {
    HstuProblem several(shape);
    hstu_attention_forward(several.forward(), num_threads);
    hstu_attention_backward(several.backward(), num_threads);
    EXPECT_TRUE(several.out.elements() == one.out.elements());
    EXPECT_TRUE(several.grad_query.elements() == one.grad_query.elements());
    EXPECT_TRUE(several.grad_key.elements() == one.grad_key.elements());
    EXPECT_TRUE(several.grad_value.elements() == one.grad_value.elements());
    EXPECT_TRUE(several.grad_position_weights == one.grad_position_weights);
    EXPECT_TRUE(several.grad_time_weights == one.grad_time_weights);
  }
}

TEST(HstuAttention, HasTheSameBitsForQueriesInSeveralRuns) {
  std::vector<std::int64_t> const lengths{130, 3, 0, 300};
  HstuShape const shape{.key_lengths = lengths,
                        .type = ElementType::kFloat32,
                        .bias = BiasKind::kBoth,
                        .max_contextual = 2,
                        .max_targets = 40};
  HstuProblem whole(shape), in_runs(shape);
  hstu_attention_forward(whole.forward(), 2);
  hstu_attention_backward(whole.backward(), 2);
  std::vector<HstuTokenRun> runs;
  for (std::int64_t const length : lengths) {
    auto const tokens = static_cast<std::int32_t>(length);
    std::int32_t const first = tokens / 7, second = tokens / 2;
    runs.insert(runs.end(), {{0, first}, {first, second - first}, {second, tokens - second}});
  }
  HstuBackwardArgs args = in_runs.backward();
  args.forward.sequences.query_runs = runs.data();
  hstu_attention_forward(args.forward, 2);
  hstu_attention_backward(args, 2);
  EXPECT_TRUE(in_runs.out.elements() == whole.out.elements());
  EXPECT_TRUE(in_runs.grad_query.elements() == whole.grad_query.elements());
  in_runs.grad_key.for_each([&](std::int64_t token, std::int64_t head, std::int64_t column) {
    EXPECT_NEAR(in_runs.grad_key.get(token, head, column), whole.grad_key.get(token, head, column), 1e-4);
    if (column < shape.value_dim) {
      EXPECT_NEAR(in_runs.grad_value.get(token, head, column), whole.grad_value.get(token, head, column), 1e-4);
    }
  });
}

TEST(HstuAttention, WritesNothingBetweenRows) {
  HstuProblem problem({.key_lengths = {70, 2}, .type = ElementType::kBfloat16});
  JaggedTensor untouched = problem.out;
  hstu_attention_forward(problem.forward(), 1);
  for (JaggedTensor* each : {&problem.out, &untouched}) each->fill([](auto...) { return 0; });
  EXPECT_TRUE(problem.out.elements() == untouched.elements());
}

TEST(HstuAttention, OfNoSequencesWritesZeroGradientsOfWeights) {
  HstuProblem problem({.key_lengths = {}, .bias = BiasKind::kBoth});
  hstu_attention_forward(problem.forward(), 3);
  hstu_attention_backward(problem.backward(), 3);
  for (Elements const* weights : {&problem.grad_position_weights, &problem.grad_time_weights})
    for (std::int64_t i = 0; i < weights->size(); ++i) EXPECT_EQ(weights->get(i), 0) << i;
}

TEST(HstuAttention, GradientsOfWeightsMayBeLeftOut) {
  HstuProblem problem({.key_lengths = {5}, .bias = BiasKind::kBoth});
  HstuBackwardArgs args = problem.backward();
  Elements const unwritten = problem.grad_time_weights;
  args.grad_time_weights = nullptr;
  hstu_attention_backward(args, 1);
  EXPECT_TRUE(problem.grad_time_weights == unwritten);
  EXPECT_FALSE(problem.grad_position_weights == problem.position_weights);
}

/// The buffers of a thread still hold the previous sequence when the next one is shorter.
TEST(HstuAttention, NanStaysInItsSequence) {
  constexpr std::int64_t kFirst = 64;
  for (ElementType const type : kTypes) {
    SCOPED_TRACE(static_cast<int>(type));
    HstuProblem problem({.key_lengths = {kFirst, 33}, .type = type});
    for (JaggedTensor* each : {&problem.query, &problem.key, &problem.value, &problem.grad_out})
      each->fill([&](std::int64_t token, std::int64_t head, std::int64_t column) {
        return token < kFirst ? std::nan("") : each->get(token, head, column);
      });
    hstu_attention_forward(problem.forward(), 1);
    hstu_attention_backward(problem.backward(), 1);
    for (JaggedTensor const* each : {&problem.out, &problem.grad_query, &problem.grad_key, &problem.grad_value})
      each->for_each([&](std::int64_t token, std::int64_t head, std::int64_t column) {
        ASSERT_EQ(std::isnan(each->get(token, head, column)), token < kFirst);
      });
  }
}

TEST(HstuAttention, LargeScoresGiveNoNan) {
  for (ElementType const type : kTypes) {
    HstuProblem problem({.key_lengths = {40}, .type = type, .options = {.alpha = 1000}});
    hstu_attention_forward(problem.forward(), 1);
    hstu_attention_backward(problem.backward(), 1);
    auto const expect_finite = [](JaggedTensor const& tensor) {
      tensor.for_each([&](auto... at) { ASSERT_TRUE(std::isfinite(tensor.get(at...))); });
    };
    expect_finite(problem.out);
    expect_finite(problem.grad_query);
    expect_finite(problem.grad_key);
    expect_finite(problem.grad_value);
  }
}

}  // namespace
}  // namespace headway::kernels
