// SPDX-License-Identifier: Apache-2.0

// Preparation kernel (prepare.cuh), run by the emulator: it refuses wrong offsets, counts and bounds, and clears memory
// for the kernels that follow.

#include "emulated_attention.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace headway::kernels {
namespace {

/// Two valid sequences of 3 and 4 queries and keys; a test spoils one value.
struct Arguments {
  std::vector<std::int64_t> query_offsets{0, 3, 7}, key_offsets{0, 3, 7};
  std::vector<std::int32_t> num_contextual{0, 0}, num_targets{0, 0};
  std::vector<float> time_bounds{1, 2, 3};
  float weight = 0;

  /// Arguments for 16-bit elements, without pointers to rows.
  [[nodiscard]] HstuForwardArgs view() const {
    HstuForwardArgs args;
    args.type = ElementType::kBfloat16;
    args.num_heads = 1;
    args.dim = args.value_dim = 64;
    args.sequences = {.num_sequences = static_cast<std::int64_t>(query_offsets.size()) - 1,
                      .query_offsets = query_offsets.data(),
                      .key_offsets = key_offsets.data(),
                      .num_queries = 7,
                      .num_keys = 7,
                      .max_queries = 4,
                      .max_keys = 4,
                      .num_contextual = num_contextual.data(),
                      .num_targets = num_targets.data()};
    args.bias.time_weights = &weight;
    args.bias.time_bounds = time_bounds.data();
    args.bias.num_time_bounds = static_cast<std::int64_t>(time_bounds.size());
    return args;
  }
};

/// Expects the preparation kernel to refuse spoiled arguments with a message.
void expect_refusal(std::string const& message, std::function<void(Arguments&)> const& spoil) {
  Arguments arguments;
  spoil(arguments);
  try {
    emulate_preparation(HstuPreparation(arguments.view()));
    ADD_FAILURE() << "not refused: " << message;
  } catch (device_emulator::KernelError const& error) {
    EXPECT_EQ(error.what(), "HSTU attention: " + message);
  }
}

TEST(HstuPreparationOnDevice, TakesArgumentsThatAreRight) {
  emulate_preparation(HstuPreparation(Arguments().view()));
  Arguments ends_before_the_rows;
  ends_before_the_rows.query_offsets = ends_before_the_rows.key_offsets = {0, 2, 4};
  emulate_preparation(HstuPreparation(ends_before_the_rows.view()));
}

TEST(HstuPreparationOnDevice, NamesTheSequenceAndTheValuesThatAreWrong) {
  expect_refusal("query_offsets begin at 1 and must at 0", [](auto& of) { of.query_offsets[0] = 1; });
  expect_refusal("key_offsets begin at -2 and must at 0", [](auto& of) { of.key_offsets[0] = -2; });
  expect_refusal("key_offsets descend from 3 to 2 in sequence 1", [](auto& of) { of.key_offsets[2] = 2; });
  expect_refusal("sequence 1 has 5 tokens by query_offsets, and at most 4 were announced",
                 [](auto& of) { of.query_offsets[2] = 8; });
  expect_refusal("query_offsets end at 8 in sequence 1, but there are 7 tokens", [](auto& of) {
    of.query_offsets = of.key_offsets = {0, 4, 8};
  });
  expect_refusal("sequence 0 has 3 queries, more than its 2 keys", [](auto& of) { of.key_offsets = {0, 2, 6}; });
  expect_refusal("sequence 1 has -1 contextual tokens", [](auto& of) { of.num_contextual[1] = -1; });
  expect_refusal("sequence 0 has -5 targets", [](auto& of) { of.num_targets[0] = -5; });
  expect_refusal("sequence 1 has 2 contextual tokens and 3 targets, more than its 4 keys", [](auto& of) {
    of.num_contextual[1] = 2;
    of.num_targets[1] = 3;
  });
  expect_refusal("time_bounds descend from 3 to 2 at 2", [](auto& of) { of.time_bounds = {1, 3, 2}; });
}

TEST(HstuPreparationOnDevice, FindsAWrongSequenceAmongMoreThanThereAreThreads) {
  expect_refusal("query_offsets descend from 2 to 1 in sequence 700", [](auto& of) {
    of.query_offsets.assign(1000, 2);
    of.query_offsets[0] = 0;
    of.query_offsets[701] = 1;
    of.key_offsets.assign(1000, 2);
    of.key_offsets[0] = 0;
    of.num_contextual.assign(999, 0);
    of.num_targets.assign(999, 0);
  });
}

TEST(HstuPreparationOnDevice, ClearsBytesAtAnyAddressAndNothingBesideThem) {
  Arguments const arguments;
  for (std::size_t const begin : {0, 2, 4, 8, 16, 6}) {
    for (std::size_t const size : {2, 4, 40, 4096, 4102}) {
      alignas(16) std::uint8_t memory[4200];
      std::fill(std::begin(memory), std::end(memory), std::uint8_t{0xff});
      HstuPreparation preparation(arguments.view());
      preparation.clear(memory + begin, static_cast<std::int64_t>(size));
      emulate_preparation(preparation);
      for (std::size_t i = 0; i < sizeof memory; ++i) {
        ASSERT_EQ(memory[i], begin <= i && i < begin + size ? 0 : 0xff) << begin << " " << size << " " << i;
      }
    }
  }
}

}  // namespace
}  // namespace headway::kernels
