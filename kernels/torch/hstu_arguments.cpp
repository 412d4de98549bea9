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
HstuAttentionOptions options_of(HstuArguments const& args) {
  bool const is_by_max = args.length_scaling == "max_length";
  TORCH_CHECK_VALUE(is_by_max || args.length_scaling == "length" || args.length_scaling == "none",
                    "hstu_attention: length_scaling must be none, length or max_length, not ", args.length_scaling);
  TORCH_CHECK_VALUE(args.causal || (!args.num_contextual && !args.num_targets),
                    "hstu_attention: num_contextual and num_targets need causal=True");
  TORCH_CHECK_VALUE(args.window > 0 || args.full_attention_tail == 0,
                    "hstu_attention: full_attention_tail needs a window");
  double const divisor = is_by_max && args.max_length > 0 ? static_cast<double>(args.max_length) : 1;
  return {.alpha = args.alpha,
          .scale = args.scale / divisor,
          .length_scaling = args.length_scaling == "length" ? LengthScaling::kByNumKeys : LengthScaling::kNone,
          .mask = {.causality = args.causal ? Causality::kCausal : Causality::kBidirectional,
                   .window = positions(args.window, "window"),
                   .full_attention_tail = positions(args.full_attention_tail, "full_attention_tail")},
          .determinism = args.deterministic ? Determinism::kDeterministic : Determinism::kAny};
}

/// Runs of queries as the kernels take them, or null.
HstuTokenRun const* runs_of(std::optional<at::Tensor> const& runs, std::int64_t num_sequences, c10::Device device) {
  if (!runs) return nullptr;
  TORCH_CHECK_NOT_IMPLEMENTED(device.is_cpu(), "hstu_attention: query_runs are there on the CPU only, and q is on ",
                              device);
  TORCH_CHECK_VALUE(runs->scalar_type() == at::kInt && runs->device() == device && runs->is_contiguous() &&
                        runs->sizes() == at::IntArrayRef({num_sequences, kMaxQueryRuns, 2}),
                    "hstu_attention: query_runs must be contiguous int32 of shape (", num_sequences, ", ",
                    kMaxQueryRuns, ", 2) on ", device, ", not ", runs->scalar_type(), runs->sizes(), " on ",
                    runs->device());
  static_assert(sizeof(HstuTokenRun) == 2 * sizeof(std::int32_t));
  return static_cast<HstuTokenRun const*>(runs->const_data_ptr());
}

/// Translates and checks offsets and counts.
/// N sequences have N + 1 offsets. Sequence n has the rows offsets[n] to offsets[n + 1] - 1 of q, and the same of k
/// and v by key_offsets; the two differ when new tokens attend to cached ones.
HstuSequences sequences_of(HstuArguments const& args) {
  auto const device = args.q.device();
  TORCH_CHECK_VALUE(args.offsets.dim() == 1 && args.offsets.size(0) >= 1,
                    "hstu_attention: offsets must be one more than there are sequences, not ", args.offsets.sizes());
  std::int64_t const num_sequences = args.offsets.size(0) - 1;
  TORCH_CHECK_VALUE(args.max_length >= 0, "hstu_attention: max_length must be from 0, and is ", args.max_length);
  return {.num_sequences = num_sequences,
          .query_offsets = list_of(args.offsets, "hstu_attention: offsets", device),
          .key_offsets = list_of(args.key_offsets, "hstu_attention: key_offsets", device, num_sequences + 1),
          .num_queries = args.q.size(0),
          .num_keys = args.k.size(0),
          .max_queries = args.max_length,
          .max_keys = args.max_length,
          .num_contextual =
              list_of<std::int32_t>(args.num_contextual, "hstu_attention: num_contextual", device, num_sequences),
          .num_targets = list_of<std::int32_t>(args.num_targets, "hstu_attention: num_targets", device, num_sequences),
          .query_runs = runs_of(args.query_runs, num_sequences, device)};
}

/// Translates and checks the bias.
/// Position weights have one entry per signed distance j - i, from -(D - 1) to D - 1. These are 2 D - 1 entries, and D
/// is bias.max_position_distance. Time weights have one entry per bucket. N bounds separate N + 1 buckets: below the
/// first bound, between two neighbours, and from the last bound on.
HstuBias bias_of(HstuArguments const& args) {
  auto const device = args.q.device();
  auto const type = args.q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  HstuBias bias;
  if (args.position_weights) {
    expect_list(*args.position_weights, "hstu_attention: position_weights", type, device);
    bias.position_weights = args.position_weights->const_data_ptr();
    bias.max_position_distance = (args.position_weights->size(0) + 1) / 2;  // D, from a size of 2 D - 1.
    TORCH_CHECK_VALUE(args.position_weights->size(0) % 2 == 1 && bias.max_position_distance >= args.max_length,
                      "hstu_attention: position_weights has ", args.position_weights->size(0),
                      " entries, and at least 2 * max_length - 1 = ", 2 * args.max_length - 1,
                      " are needed, of an odd number");
  }
  if (!args.time_weights) {
    TORCH_CHECK_VALUE(!args.time_bounds && !args.query_times && !args.key_times,
                      "hstu_attention: time_bounds, query_times and key_times need time_weights");
    return bias;
  }
  TORCH_CHECK_VALUE(args.time_bounds && args.query_times && args.key_times,
                    "hstu_attention: time_weights needs time_bounds, query_times and key_times");
  bias.num_time_bounds = args.time_bounds->numel();
  expect_list(*args.time_weights, "hstu_attention: time_weights", type, device, bias.num_time_bounds + 1);
  bias.time_weights = args.time_weights->const_data_ptr();
  bias.time_bounds = list_of<float>(args.time_bounds, "hstu_attention: time_bounds", device);
  bias.query_times = list_of(args.query_times, "hstu_attention: query_times", device, args.q.size(0));
  bias.key_times = list_of(args.key_times, "hstu_attention: key_times", device, args.k.size(0));
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
      deterministic(values[19].toBool()),
      query_runs(values[20].toOptional<at::Tensor>()) {}

HstuForwardArgs view_of(HstuArguments const& args) {
  ElementType const type = element_type(args.q, "hstu_attention", "q");
  expect_heads(args.q, "q", args.q);
  expect_heads(args.k, "k", args.q);
  expect_heads(args.v, "v", args.q);
  TORCH_CHECK_VALUE(args.k.size(2) == args.q.size(2), "hstu_attention: k has ", args.k.size(2), " columns and q ",
                    args.q.size(2));
  TORCH_CHECK_VALUE(args.v.size(0) == args.k.size(0), "hstu_attention: v has ", args.v.size(0), " tokens and k ",
                    args.k.size(0));
  return {.options = options_of(args),
          .sequences = sequences_of(args),
          .type = type,
          .num_heads = static_cast<std::int32_t>(args.q.size(1)),
          .dim = static_cast<std::int32_t>(args.q.size(2)),
          .value_dim = static_cast<std::int32_t>(args.v.size(2)),
          .query = heads_of<void const*>(args.q),
          .key = heads_of<void const*>(args.k),
          .value = heads_of<void const*>(args.v),
          .bias = bias_of(args),
          .out = {}};
}

at::Tensor empty_like_heads(at::Tensor const& like, std::int64_t num_columns) {
  return at::empty({like.size(0), like.size(1), num_columns}, like.options());
}

}  // namespace headway::kernels
