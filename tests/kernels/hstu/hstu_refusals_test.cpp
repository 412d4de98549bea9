// SPDX-License-Identifier: Apache-2.0

// Refusals on the CPU: each error must name the wrong argument.

#include "headway/kernels/hstu_attention.hpp"
#include "hstu_problem.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

namespace headway::kernels {
namespace {

/// Valid arguments for two sequences of 3 and 4 keys, with both kinds of bias.
struct RightArguments {
  HstuProblem problem{HstuShape{.key_lengths = {3, 4}, .bias = BiasKind::kBoth, .max_contextual = 1}};
  HstuBackwardArgs args = problem.backward();
};

/// Expects a call to throw std::invalid_argument with a text that contains `expected`.
void expect_refusal(std::string const& expected, std::function<void()> const& call) {
  try {
    call();
    ADD_FAILURE() << "not refused: " << expected;
  } catch (std::invalid_argument const& error) {
    EXPECT_NE(std::string(error.what()).find(expected), std::string::npos)
        << "expected: " << expected << "\nfound: " << error.what();
  }
}

/// Expects both passes to refuse arguments that `spoil` has changed.
void expect_refusal(std::string const& expected, std::function<void(HstuForwardArgs&)> const& spoil) {
  RightArguments right;
  spoil(right.args.forward);
  expect_refusal(expected, [&] { hstu_attention_forward(right.args.forward, 1); });
  expect_refusal(expected, [&] { hstu_attention_backward(right.args, 1); });
}

TEST(HstuRefusals, NameOffsetsThatDoNotFit) {
  auto const with_offsets = [](std::vector<std::int64_t> const& queries, std::vector<std::int64_t> const& keys) {
    return [=](HstuForwardArgs& args) {
      args.sequences.query_offsets = queries.data();
      args.sequences.key_offsets = keys.data();
    };
  };
  std::vector<std::int64_t> const right{0, 3, 7};
  expect_refusal("query_offsets begin at 1", with_offsets({1, 3, 7}, right));
  expect_refusal("key_offsets descend from 4 to 3 in sequence 1", with_offsets(right, {0, 4, 3}));
  expect_refusal("sequence 0 has 5 tokens by key_offsets, and at most 4", with_offsets(right, {0, 5, 7}));
  expect_refusal("query_offsets end at 8 in sequence 0, but there are 7 tokens", [](auto& args) {
    static constexpr std::int64_t kBeyond[] = {0, 8, 8};
    args.sequences.query_offsets = kBeyond;
    args.sequences.max_queries = 8;
  });
  expect_refusal("sequence 1 has 4 queries, more than its 3 keys", with_offsets(right, {0, 4, 7}));
  expect_refusal("query_offsets is null", [](auto& args) { args.sequences.query_offsets = nullptr; });
  expect_refusal("num_sequences is -1", [](auto& args) { args.sequences.num_sequences = -1; });
  expect_refusal("max_keys is 2147483648", [](auto& args) { args.sequences.max_keys = std::int64_t{1} << 31; });
}

TEST(HstuRefusals, NameRunsThatDoNotFit) {
  static constexpr HstuTokenRun kEmpty{}, kWhole{0, 3};
  static constexpr HstuTokenRun kBehind[] = {kWhole, kEmpty, kEmpty, {1, 4}, kEmpty, kEmpty};
  static constexpr HstuTokenRun kTwice[] = {{0, 2}, {1, 1}, kEmpty, {0, 4}, kEmpty, kEmpty};
  static constexpr HstuTokenRun kNegative[] = {{0, -1}, kEmpty, kEmpty, {0, 4}, kEmpty, kEmpty};
  static constexpr HstuTokenRun kTooFew[] = {kWhole, kEmpty, kEmpty, {0, 1}, {3, 1}, kEmpty};
  auto const with_runs = [](HstuTokenRun const* runs) {
    return [=](HstuForwardArgs& args) { args.sequences.query_runs = runs; };
  };
  expect_refusal("run 0 of sequence 1 has the tokens 1 to 5, and must lie between 0 and 4", with_runs(kBehind));
  expect_refusal("run 1 of sequence 0 has the tokens 1 to 2, and must lie between 2 and 3", with_runs(kTwice));
  expect_refusal("run 0 of sequence 0 has -1 queries", with_runs(kNegative));
  expect_refusal("the runs of sequence 1 have 2 queries, and by query_offsets it has 4", with_runs(kTooFew));
}

TEST(HstuRefusals, NameSequencesWithTooManyContextualTokensAndTargets) {
  static constexpr std::int32_t kContextual[] = {0, 2}, kTargets[] = {1, 3}, kNegative[] = {0, -1};
  expect_refusal("sequence 1 has 2 contextual tokens and 3 targets, more than its 4 keys", [](auto& args) {
    args.sequences.num_contextual = kContextual;
    args.sequences.num_targets = kTargets;
  });
  expect_refusal("sequence 1 has -1 contextual tokens", [](auto& args) { args.sequences.num_contextual = kNegative; });
  expect_refusal("sequence 1 has -1 targets", [](auto& args) { args.sequences.num_targets = kNegative; });
}

TEST(HstuRefusals, NameSizesAndMemoryThatAreMissing) {
  expect_refusal("num_heads is 0", [](auto& args) { args.num_heads = 0; });
  expect_refusal("dim is -2", [](auto& args) { args.dim = -2; });
  expect_refusal("value_dim is 0", [](auto& args) { args.value_dim = 0; });
  expect_refusal("window is -1", [](auto& args) { args.options.mask.window = -1; });
  expect_refusal("full_attention_tail is -3", [](auto& args) { args.options.mask.full_attention_tail = -3; });
  expect_refusal("element type 9", [](auto& args) { args.type = static_cast<ElementType>(9); });
  expect_refusal("query is null", [](auto& args) { args.query.data = nullptr; });
  expect_refusal("key is null", [](auto& args) { args.key.data = nullptr; });
  expect_refusal("value is null", [](auto& args) { args.value.data = nullptr; });
}

TEST(HstuRefusals, NameABiasThatDoesNotFit) {
  static constexpr float kDescending[] = {1, 3, 2};
  expect_refusal("max_position_distance is 3, less than the 4 keys of the longest sequence",
                 [](auto& args) { args.bias.max_position_distance = 3; });
  expect_refusal("time_bounds is null", [](auto& args) { args.bias.time_bounds = nullptr; });
  expect_refusal("num_time_bounds is -1", [](auto& args) { args.bias.num_time_bounds = -1; });
  expect_refusal("query_times is null", [](auto& args) { args.bias.query_times = nullptr; });
  expect_refusal("key_times is null", [](auto& args) { args.bias.key_times = nullptr; });
  expect_refusal("time_bounds descend from 3", [](auto& args) {
    args.bias.time_bounds = kDescending;
    args.bias.num_time_bounds = 3;
  });
}

TEST(HstuRefusals, NameWhatAPassNeedsOfItsOwn) {
  RightArguments right;
  HstuForwardArgs forward = right.args.forward;
  expect_refusal("num_threads is 0", [&] { hstu_attention_forward(forward, 0); });
  expect_refusal("num_threads is -1", [&] { hstu_attention_backward(right.args, -1); });
  forward.out.data = nullptr;
  expect_refusal("out is null", [&] { hstu_attention_forward(forward, 1); });

  auto const expect_backward_refusal = [&](std::string const& expected, auto const& spoil) {
    HstuBackwardArgs spoiled = right.args;
    spoil(spoiled);
    expect_refusal(expected, [&] { hstu_attention_backward(spoiled, 1); });
  };
  expect_backward_refusal("grad_out is null", [](auto& args) { args.grad_out.data = nullptr; });
  expect_backward_refusal("grad_query is null", [](auto& args) { args.grad_query.data = nullptr; });
  expect_backward_refusal("grad_key is null", [](auto& args) { args.grad_key.data = nullptr; });
  expect_backward_refusal("grad_value is null", [](auto& args) { args.grad_value.data = nullptr; });
  expect_backward_refusal("no position_weights", [](auto& args) { args.forward.bias.position_weights = nullptr; });
  expect_backward_refusal("no time_weights", [](auto& args) { args.forward.bias.time_weights = nullptr; });
}

}  // namespace
}  // namespace headway::kernels
