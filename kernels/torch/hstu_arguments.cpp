#include "hstu_arguments.hpp"

#include "element_types.hpp"

#include <limits>

namespace headway::kernels {

namespace {

/// Heads of queries, keys, values or of gradients: rows apart by any strides, columns together.
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

/// A list beside the sequences, or null where there is none.
template <class T>
T const* list_of(std::optional<at::Tensor> const& tensor, char const* name, at::ScalarType type,
                 std::optional<std::int64_t> size, at::Device device) {
  if (!tensor) return nullptr;
  TORCH_CHECK_VALUE(
      tensor->dim() == 1 && tensor->is_contiguous() && tensor->scalar_type() == type && tensor->device() == device,
      "hstu_attention: ", name, " must be one contiguous dimension of ", type, " on ", device, ", not ",
      tensor->scalar_type(), tensor->sizes(), " on ", tensor->device());
  TORCH_CHECK_VALUE(!size || tensor->size(0) == *size, "hstu_attention: ", name, " has ", tensor->size(0),
                    " entries, and ", *size, " are needed");
  return static_cast<T const*>(tensor->const_data_ptr());
}

std::int32_t positions(std::int64_t value, char const* name) {
  TORCH_CHECK_VALUE(value >= 0 && value <= std::numeric_limits<std::int32_t>::max(), "hstu_attention: ", name,
                    " must be from 0, and is ", value);
  return static_cast<std::int32_t>(value);
}

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

HstuSequences sequences_of(HstuArguments const& of) {
  auto const device = of.q.device();
  TORCH_CHECK_VALUE(of.offsets.dim() == 1 && of.offsets.size(0) >= 1,
                    "hstu_attention: offsets must be one more than there are sequences, not ", of.offsets.sizes());
  std::int64_t const num_sequences = of.offsets.size(0) - 1;
  TORCH_CHECK_VALUE(of.max_length >= 0, "hstu_attention: max_length must be from 0, and is ", of.max_length);
  return {.num_sequences = num_sequences,
          .query_offsets = list_of<std::int64_t>(of.offsets, "offsets", at::kLong, {}, device),
          .key_offsets = list_of<std::int64_t>(of.key_offsets, "key_offsets", at::kLong, num_sequences + 1, device),
          .num_queries = of.q.size(0),
          .num_keys = of.k.size(0),
          .max_queries = of.max_length,
          .max_keys = of.max_length,
          .num_contextual = list_of<std::int32_t>(of.num_contextual, "num_contextual", at::kInt, num_sequences, device),
          .num_targets = list_of<std::int32_t>(of.num_targets, "num_targets", at::kInt, num_sequences, device)};
}

HstuBias bias_of(HstuArguments const& of) {
  auto const device = of.q.device();
  auto const type = of.q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  HstuBias bias;
  bias.position_weights = list_of<void>(of.position_weights, "position_weights", type, {}, device);
  if (of.position_weights) {
    bias.max_position_distance = (of.position_weights->size(0) + 1) / 2;
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
  bias.time_weights = list_of<void>(of.time_weights, "time_weights", type, bias.num_time_bounds + 1, device);
  bias.time_bounds = list_of<float>(of.time_bounds, "time_bounds", at::kFloat, {}, device);
  bias.query_times = list_of<std::int64_t>(of.query_times, "query_times", at::kLong, of.q.size(0), device);
  bias.key_times = list_of<std::int64_t>(of.key_times, "key_times", at::kLong, of.k.size(0), device);
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
