// SPDX-License-Identifier: Apache-2.0

// Arguments of the HSTU operator: checks tensors, and describes them as HstuForwardArgs without a copy. All checks
// that need only shapes, types and devices are here; contents (offsets, counts) are checked by the kernels.

#include "hstu_arguments.hpp"

#include "tensor_arguments.hpp"

#include <limits>

namespace headway::kernels {

namespace {

/// Checks q, k or v, of shape (tokens, heads, columns). Columns must be contiguous; the other strides are arbitrary.
void expect_heads(at::Tensor const& tensor, char const* name, at::Tensor const& q) {
  TORCH_CHECK_VALUE(tensor.dim() == 3, "hstu_attention: ", name, " must be (tokens, heads, columns), not ",
                    tensor.sizes());
  TORCH_CHECK_VALUE(tensor.scalar_type() == q.scalar_type(), "hstu_attention: ", name, " is ", tensor.scalar_type(),
                    " and q is ", q.scalar_type());
  TORCH_CHECK_VALUE(tensor.device() == q.device(), "hstu_attention: ", name, " is on ", tensor.device(), " and q on ",
                    q.device());
  TORCH_CHECK_VALUE(tensor.size(1) == q.size(1), "hstu_attention: ", name, " has ", tensor.size(1), " heads and q ",
                    q.size(1));
  TORCH_CHECK_VALUE(tensor.stride(2) == 1 || tensor.size(2) <= 1, "hstu_attention: the columns of ", name,
                    " must lie together (stride 1, not ", tensor.stride(2), ")");
}

/// Converts a number of positions to 32 bits. @throws c10::ValueError if it is negative or too large.
std::int32_t positions(std::int64_t value, char const* name) {
  TORCH_CHECK_VALUE(value >= 0 && value <= std::numeric_limits<std::int32_t>::max(), "hstu_attention: ", name,
                    " must be from 0 to ", std::numeric_limits<std::int32_t>::max(), ", and is ", value);
  return static_cast<std::int32_t>(value);
}

/// Translates scalar arguments into options, and checks them.
/// "max_length" divides by a number that is known here, so it is folded into the scale. "length" depends on the
/// sequence and is left to the kernel. Example: scale 0.125 and max_length 50 give the scale 0.0025.
HstuAttentionOptions options_of(HstuArguments const& of) {
  bool const is_by_max = of.length_scaling == "max_length";
  TORCH_CHECK_VALUE(is_by_max || of.length_scaling == "length" || of.length_scaling == "none",
                    "hstu_attention: length_scaling must be none, length or max_length, not ", of.length_scaling);
  TORCH_CHECK_VALUE(of.causal || (!of.num_contextual && !of.num_targets),
                    "hstu_attention: num_contextual and num_targets need causal=True");
  TORCH_CHECK_VALUE(of.window > 0 || of.full_attention_tail == 0, "hstu_attention: full_attention_tail needs a window");
  double const divisor = is_by_max && of.max_length > 0 ? static_cast<double>(of.max_length) : 1;
  return {.alpha = of.alpha,
          .scale = of.scale / divisor,
          .length_scaling = of.length_scaling == "length" ? LengthScaling::kByNumKeys : LengthScaling::kNone,
          .mask = {.causality = of.causal ? Causality::kCausal : Causality::kBidirectional,
                   .window = positions(of.window, "window"),
                   .full_attention_tail = positions(of.full_attention_tail, "full_attention_tail")},
          .determinism = of.deterministic ? Determinism::kDeterministic : Determinism::kAny};
}

/// Translates and checks offsets and counts.
/// N sequences have N + 1 offsets. Sequence n has the rows offsets[n] to offsets[n + 1] - 1 of q, and the same of k
/// and v by key_offsets; the two differ when new tokens attend to cached ones.
HstuSequences sequences_of(HstuArguments const& of) {
  auto const device = of.q.device();
  TORCH_CHECK_VALUE(of.offsets.dim() == 1 && of.offsets.size(0) >= 1,
                    "hstu_attention: offsets must be one more than there are sequences, not ", of.offsets.sizes());
  std::int64_t const num_sequences = of.offsets.size(0) - 1;
  TORCH_CHECK_VALUE(of.max_length >= 0, "hstu_attention: max_length must be from 0, and is ", of.max_length);
  return {.num_sequences = num_sequences,
          .query_offsets = list_of(of.offsets, "hstu_attention: offsets", device),
          .key_offsets = list_of(of.key_offsets, "hstu_attention: key_offsets", device, num_sequences + 1),
          .num_queries = of.q.size(0),
          .num_keys = of.k.size(0),
          .max_queries = of.max_length,
          .max_keys = of.max_length,
          .num_contextual =
              list_of<std::int32_t>(of.num_contextual, "hstu_attention: num_contextual", device, num_sequences),
          .num_targets = list_of<std::int32_t>(of.num_targets, "hstu_attention: num_targets", device, num_sequences)};
}

/// Translates and checks the bias.
/// Position weights have one entry per signed distance j - i, from -(D - 1) to D - 1. These are 2 D - 1 entries, and D
/// is bias.max_position_distance. Time weights have one entry per bucket. N bounds separate N + 1 buckets: below the
/// first bound, between two neighbours, and from the last bound on.
HstuBias bias_of(HstuArguments const& of) {
  auto const device = of.q.device();
  auto const type = of.q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  HstuBias bias;
  if (of.position_weights) {
    expect_list(*of.position_weights, "hstu_attention: position_weights", type, device);
    bias.position_weights = of.position_weights->const_data_ptr();
    bias.max_position_distance = (of.position_weights->size(0) + 1) / 2;  // D, from a size of 2 D - 1.
    TORCH_CHECK_VALUE(of.position_weights->size(0) % 2 == 1 && bias.max_position_distance >= of.max_length,
                      "hstu_attention: position_weights has ", of.position_weights->size(0),
                      " entries, and at least 2 * max_length - 1 = ", 2 * of.max_length - 1,
                      " are needed, of an odd number");
  }
  if (!of.time_weights) {
    TORCH_CHECK_VALUE(!of.time_bounds && !of.query_times && !of.key_times,
                      "hstu_attention: time_bounds, query_times and key_times need time_weights");
    return bias;
  }
  TORCH_CHECK_VALUE(of.time_bounds && of.query_times && of.key_times,
                    "hstu_attention: time_weights needs time_bounds, query_times and key_times");
  bias.num_time_bounds = of.time_bounds->numel();
  expect_list(*of.time_weights, "hstu_attention: time_weights", type, device, bias.num_time_bounds + 1);
  bias.time_weights = of.time_weights->const_data_ptr();
  bias.time_bounds = list_of<float>(of.time_bounds, "hstu_attention: time_bounds", device);
  bias.query_times = list_of(of.query_times, "hstu_attention: query_times", device, of.q.size(0));
  bias.key_times = list_of(of.key_times, "hstu_attention: key_times", device, of.k.size(0));
  return bias;
}

}  // namespace

HstuArguments::HstuArguments(c10::ArrayRef<c10::IValue> values)
    : q(values[0].toTensor()),
      k(values[1].toTensor()),
      v(values[2].toTensor()),
      offsets(values[3].toTensor()),
      key_offsets(values[4].toTensor()),
      max_length(values[5].toInt()),
      position_weights(values[6].toOptional<at::Tensor>()),
      time_weights(values[7].toOptional<at::Tensor>()),
      time_bounds(values[8].toOptional<at::Tensor>()),
      query_times(values[9].toOptional<at::Tensor>()),
      key_times(values[10].toOptional<at::Tensor>()),
      num_contextual(values[11].toOptional<at::Tensor>()),
      num_targets(values[12].toOptional<at::Tensor>()),
      alpha(values[13].toDouble()),
      scale(values[14].toDouble()),
      length_scaling(values[15].toStringRef()),
      causal(values[16].toBool()),
      window(values[17].toInt()),
      full_attention_tail(values[18].toInt()),
      deterministic(values[19].toBool()) {}

HstuForwardArgs view_of(HstuArguments const& of) {
  ElementType const type = element_type(of.q, "hstu_attention", "q");
  expect_heads(of.q, "q", of.q);
  expect_heads(of.k, "k", of.q);
  expect_heads(of.v, "v", of.q);
  TORCH_CHECK_VALUE(of.k.size(2) == of.q.size(2), "hstu_attention: k has ", of.k.size(2), " columns and q ",
                    of.q.size(2));
  TORCH_CHECK_VALUE(of.v.size(0) == of.k.size(0), "hstu_attention: v has ", of.v.size(0), " tokens and k ",
                    of.k.size(0));
  return {.options = options_of(of),
          .sequences = sequences_of(of),
          .type = type,
          .num_heads = static_cast<std::int32_t>(of.q.size(1)),
          .dim = static_cast<std::int32_t>(of.q.size(2)),
          .value_dim = static_cast<std::int32_t>(of.v.size(2)),
          .query = heads_of<void const*>(of.q),
          .key = heads_of<void const*>(of.k),
          .value = heads_of<void const*>(of.v),
          .bias = bias_of(of),
          .out = {}};
}

at::Tensor empty_like_heads(at::Tensor const& like, std::int64_t num_columns) {
  return at::empty({like.size(0), like.size(1), num_columns}, like.options());
}

}  // namespace headway::kernels
