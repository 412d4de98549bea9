// SPDX-License-Identifier: Apache-2.0

// Checks of HSTU arguments. Sizes and null pointers are host values and are checked for all devices. Offsets, counts
// and bounds lie in memory of the device: here they are checked for the CPU, in kernels for GPUs, with the same texts
// (sequence_checks.hpp).

#include "hstu/check_arguments.hpp"

#include "hstu/sequence_checks.hpp"

#include <array>
#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <string>

namespace headway::kernels::hstu {
namespace {

/// Limit that keeps sums of two positions in 32 bits.
constexpr std::int64_t kMaxKeys = std::int64_t{1} << 30;

/// Throws std::invalid_argument with the joined parts unless `holds`.
template <class... Parts>
void expects(bool holds, Parts const&... parts) {
  if (holds) return;
  auto const text = [](auto const& part) {
    if constexpr (requires { std::to_string(part); })
      return std::to_string(part);
    else
      return std::string(part);
  };
  throw std::invalid_argument("HSTU attention: " + (text(parts) + ...));
}

void expects_positive(char const* name, std::int64_t value) {
  expects(value >= 1, name, " is ", value, " and must be at least 1");
}

void expects_not_negative(char const* name, std::int64_t value) {
  expects(value >= 0, name, " is ", value, " and must be at least 0");
}

/// Requires memory unless there are no tokens.
void expects_memory(char const* name, void const* data, std::int64_t tokens) {
  expects(data != nullptr || tokens == 0, name, " is null");
}

/// Refusal on the host, for sequence_checks.hpp. @throws std::invalid_argument
struct Refuse {
  template <class... Values>
  [[noreturn]] void operator()(char const* format, Values... values) const {
    std::array<char, 256> text{};
    std::snprintf(text.data(), text.size(), format, values...);
    throw std::invalid_argument(text.data());
  }
};

/// Checks the runs of queries of sequence b, whose offsets have been checked.
void check_runs(HstuSequences const& all, std::int64_t b) {
  std::int64_t const num_keys = all.key_offsets[b + 1] - all.key_offsets[b];
  std::int64_t behind = 0, rows = 0;  // Tokens up to the end of the run before, and rows of all runs.
  for (std::int64_t i = 0; i < kMaxQueryRuns; ++i) {
    HstuTokenRun const run = all.query_runs[b * kMaxQueryRuns + i];
    expects(run.rows >= 0, "run ", i, " of sequence ", b, " has ", run.rows, " queries");
    if (run.rows == 0) continue;
    std::int64_t const end = std::int64_t{run.first} + run.rows;
    expects(run.first >= behind && end <= num_keys, "run ", i, " of sequence ", b, " has the tokens ", run.first,
            " to ", end, ", and must lie between ", behind, " and ", num_keys);
    behind = end;
    rows += run.rows;
  }
  std::int64_t const queries = all.query_offsets[b + 1] - all.query_offsets[b];
  expects(rows == queries, "the runs of sequence ", b, " have ", rows, " queries, and by query_offsets it has ",
          queries);
}

void check_sequences(HstuSequences const& all) {
  check_first_offsets(all, Refuse());
  for (std::int64_t b = 0; b < all.num_sequences; ++b) {
    check_sequence(all, b, Refuse());
    if (all.query_runs != nullptr) check_runs(all, b);
  }
}

void check_bias(HstuForwardArgs const& args) {
  HstuBias const& bias = args.bias;
  if (bias.has_position()) {
    expects(args.sequences.max_keys <= bias.max_position_distance, "max_position_distance is ",
            bias.max_position_distance, ", less than the ", args.sequences.max_keys, " keys of the longest sequence");
  }
  if (!bias.has_time()) return;
  expects_not_negative("num_time_bounds", bias.num_time_bounds);
  expects_memory("time_bounds", bias.time_bounds, bias.num_time_bounds);
  expects_memory("query_times", bias.query_times, args.sequences.num_queries);
  expects_memory("key_times", bias.key_times, args.sequences.num_keys);
}

void check_input_sizes(HstuForwardArgs const& args) {
  HstuSequences const& all = args.sequences;
  expects(args.type <= ElementType::kFloat16, "element type ", static_cast<int>(args.type), " is not known");
  expects_positive("num_heads", args.num_heads);
  expects_positive("dim", args.dim);
  expects_positive("value_dim", args.value_dim);
  expects_not_negative("window", args.options.mask.window);
  expects_not_negative("full_attention_tail", args.options.mask.full_attention_tail);
  expects_not_negative("num_sequences", all.num_sequences);
  expects_not_negative("num_queries", all.num_queries);
  expects_not_negative("num_keys", all.num_keys);
  expects_not_negative("max_queries", all.max_queries);
  expects(all.max_queries <= kMaxKeys, "max_queries is ", all.max_queries, ", and at most ", kMaxKeys, " are possible");
  expects(all.max_keys <= kMaxKeys, "max_keys is ", all.max_keys, ", and at most ", kMaxKeys, " are possible");
  expects(all.query_offsets != nullptr, "query_offsets is null");
  expects(all.key_offsets != nullptr, "key_offsets is null");
  expects_memory("query", args.query.data, all.num_queries);
  expects_memory("key", args.key.data, all.num_keys);
  expects_memory("value", args.value.data, all.num_keys);
  check_bias(args);
}

void check_inputs(HstuForwardArgs const& args) {
  check_sequences(args.sequences);
  for (std::int64_t i = 1; args.bias.has_time() && i < args.bias.num_time_bounds; ++i) {
    check_time_bound(args.bias.time_bounds, i, Refuse());
  }
}

}  // namespace

void check_sizes(HstuForwardArgs const& args) {
  check_input_sizes(args);
  expects_memory("out", args.out.data, args.sequences.num_queries);
}

void check_sizes(HstuBackwardArgs const& args) {
  HstuForwardArgs const& forward = args.forward;
  check_input_sizes(forward);
  expects_memory("grad_out", args.grad_out.data, forward.sequences.num_queries);
  expects_memory("grad_query", args.grad_query.data, forward.sequences.num_queries);
  expects_memory("grad_key", args.grad_key.data, forward.sequences.num_keys);
  expects_memory("grad_value", args.grad_value.data, forward.sequences.num_keys);
  expects(args.grad_position_weights == nullptr || forward.bias.has_position(),
          "grad_position_weights are wanted, but there are no position_weights");
  expects(args.grad_time_weights == nullptr || forward.bias.has_time(),
          "grad_time_weights are wanted, but there are no time_weights");
}

void check_arguments(HstuForwardArgs const& args) {
  check_sizes(args);
  check_inputs(args);
}

void check_arguments(HstuBackwardArgs const& args) {
  check_sizes(args);
  check_inputs(args.forward);
}

}  // namespace headway::kernels::hstu
