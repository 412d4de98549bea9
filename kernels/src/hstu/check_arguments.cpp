#include "hstu/check_arguments.hpp"

#include <cstdint>
#include <stdexcept>
#include <string>

namespace headway::kernels::hstu {
namespace {

/// Sums of two positions have 32 bits.
constexpr std::int64_t kMostKeys = std::int64_t{1} << 30;

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

/// There must be memory where there are elements.
void expects_memory(char const* name, void const* data, std::int64_t tokens) {
  expects(data != nullptr || tokens == 0, name, " is null");
}

void check_offsets(char const* name, std::int64_t const* offsets, std::int64_t num_sequences, std::int64_t count,
                   std::int64_t most) {
  expects(offsets != nullptr, name, "_offsets is null");
  expects(offsets[0] == 0, name, "_offsets begin at ", offsets[0], " and must at 0");
  for (std::int64_t b = 0; b < num_sequences; ++b) {
    std::int64_t const length = offsets[b + 1] - offsets[b];
    expects(length >= 0, name, "_offsets descend from ", offsets[b], " to ", offsets[b + 1], " in sequence ", b);
    expects(length <= most, "sequence ", b, " has ", length, " tokens by ", name, "_offsets, and at most ", most,
            " were announced");
  }
  std::int64_t const last = offsets[num_sequences];
  expects(last == count, name, "_offsets end at ", last, ", but there are ", count, " tokens");
}

void check_lengths(HstuSequences const& all, std::int64_t b) {
  std::int64_t const queries = all.query_offsets[b + 1] - all.query_offsets[b];
  std::int64_t const keys = all.key_offsets[b + 1] - all.key_offsets[b];
  expects(queries <= keys, "sequence ", b, " has ", queries, " queries, more than its ", keys, " keys");
  std::int64_t const contextual = all.num_contextual == nullptr ? 0 : all.num_contextual[b];
  std::int64_t const targets = all.num_targets == nullptr ? 0 : all.num_targets[b];
  expects(contextual >= 0, "sequence ", b, " has ", contextual, " contextual tokens");
  expects(targets >= 0, "sequence ", b, " has ", targets, " targets");
  expects(contextual + targets <= keys, "sequence ", b, " has ", contextual, " contextual tokens and ", targets,
          " targets, more than its ", keys, " keys");
}

void check_sequences(HstuSequences const& all) {
  expects_not_negative("num_sequences", all.num_sequences);
  expects(all.max_keys <= kMostKeys, "max_keys is ", all.max_keys, ", and at most ", kMostKeys, " are possible");
  check_offsets("query", all.query_offsets, all.num_sequences, all.num_queries, all.max_queries);
  check_offsets("key", all.key_offsets, all.num_sequences, all.num_keys, all.max_keys);
  for (std::int64_t b = 0; b < all.num_sequences; ++b) check_lengths(all, b);
}

void check_position_bias(HstuForwardArgs const& args) {
  HstuSequences const& all = args.sequences;
  for (std::int64_t b = 0; b < all.num_sequences; ++b) {
    std::int64_t const keys = all.key_offsets[b + 1] - all.key_offsets[b];
    expects(keys <= args.bias.max_position_distance, "max_position_distance is ", args.bias.max_position_distance,
            ", less than the ", keys, " keys of sequence ", b);
  }
}

void check_time_bias(HstuForwardArgs const& args) {
  HstuBias const& bias = args.bias;
  expects_not_negative("num_time_bounds", bias.num_time_bounds);
  expects_memory("time_bounds", bias.time_bounds, bias.num_time_bounds);
  expects_memory("query_times", bias.query_times, args.sequences.num_queries);
  expects_memory("key_times", bias.key_times, args.sequences.num_keys);
  for (std::int64_t i = 1; i < bias.num_time_bounds; ++i)
    expects(bias.time_bounds[i - 1] <= bias.time_bounds[i], "time_bounds descend from ", bias.time_bounds[i - 1],
            " to ", bias.time_bounds[i], " at ", i);
}

void check_inputs(HstuForwardArgs const& args) {
  expects(args.type <= ElementType::kFloat16, "element type ", static_cast<int>(args.type), " is not known");
  expects_positive("num_heads", args.num_heads);
  expects_positive("dim", args.dim);
  expects_positive("value_dim", args.value_dim);
  expects_not_negative("window", args.options.mask.window);
  expects_not_negative("full_attention_tail", args.options.mask.full_attention_tail);
  check_sequences(args.sequences);
  expects_memory("query", args.query.data, args.sequences.num_queries);
  expects_memory("key", args.key.data, args.sequences.num_keys);
  expects_memory("value", args.value.data, args.sequences.num_keys);
  if (args.bias.has_position()) check_position_bias(args);
  if (args.bias.has_time()) check_time_bias(args);
}

}  // namespace

void check_arguments(HstuForwardArgs const& args) {
  check_inputs(args);
  expects_memory("out", args.out.data, args.sequences.num_queries);
}

void check_arguments(HstuBackwardArgs const& args) {
  HstuForwardArgs const& forward = args.forward;
  check_inputs(forward);
  expects_memory("grad_out", args.grad_out.data, forward.sequences.num_queries);
  expects_memory("grad_query", args.grad_query.data, forward.sequences.num_queries);
  expects_memory("grad_key", args.grad_key.data, forward.sequences.num_keys);
  expects_memory("grad_value", args.grad_value.data, forward.sequences.num_keys);
  expects(args.grad_position_weights == nullptr || forward.bias.has_position(),
          "grad_position_weights are wanted, but there are no position_weights");
  expects(args.grad_time_weights == nullptr || forward.bias.has_time(),
          "grad_time_weights are wanted, but there are no time_weights");
}

}  // namespace headway::kernels::hstu
