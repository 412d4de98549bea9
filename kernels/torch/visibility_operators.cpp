// SPDX-License-Identifier: Apache-2.0

// torch.ops.headway.hstu_visibility: the question that kernels ask of blocks, for any ranges of tokens. A plan that
// divides sequences among ranks asks it, so that it sends exactly the keys that a kernel will look at.

#include "headway/kernels/hstu_mask.hpp"
#include "tensor_arguments.hpp"
#include "torch_headers.hpp"

#include <cstdint>
#include <limits>

namespace headway::kernels {

namespace {

/// Sequence, first and end of the queries, first and end of the keys.
constexpr std::int64_t kRangeColumns = 5;

std::int32_t position(std::int64_t value, std::int64_t most, char const* name) {
  TORCH_CHECK_VALUE(value >= 0 && value <= most, "hstu_visibility: ", name, " is ", value, ", and must be from 0 to ",
                    most);
  return static_cast<std::int32_t>(value);
}

at::Tensor visibility(at::Tensor const& lengths, at::Tensor const& num_contextual, at::Tensor const& num_targets,
                      at::Tensor const& ranges, bool causal, std::int64_t window, std::int64_t full_attention_tail) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max() / 2;  // Sums of two positions fit 32 bits.
  std::int64_t const num_sequences = lengths.numel();
  auto const device = lengths.device();
  auto const* const length = list_of(lengths, "hstu_visibility: lengths", device, num_sequences);
  auto const* const contextual = list_of(num_contextual, "hstu_visibility: num_contextual", device, num_sequences);
  auto const* const targets = list_of(num_targets, "hstu_visibility: num_targets", device, num_sequences);
  TORCH_CHECK_VALUE(ranges.dim() == 2 && ranges.size(1) == kRangeColumns && ranges.scalar_type() == at::kLong,
                    "hstu_visibility: ranges must be (ranges, ", kRangeColumns, ") int64, not ", ranges.sizes());
  at::Tensor const rows = ranges.contiguous();
  auto const* range = rows.const_data_ptr<std::int64_t>();
  at::Tensor out = at::empty({rows.size(0)}, rows.options().dtype(at::kByte));
  auto* const seen = out.mutable_data_ptr<std::uint8_t>();
  HstuMaskOptions const options{.causality = causal ? Causality::kCausal : Causality::kBidirectional,
                                .window = position(window, kMost, "window"),
                                .full_attention_tail = position(full_attention_tail, kMost, "full_attention_tail")};
  for (std::int64_t i = 0; i < rows.size(0); ++i, range += kRangeColumns) {
    std::int64_t const b = position(range[0], num_sequences - 1, "a sequence");
    std::int32_t const tokens = position(length[b], kMost, "a length");
    HstuSequenceMask const mask{.options = options,
                                .num_queries = tokens,
                                .num_keys = tokens,
                                .num_contextual = position(contextual[b], tokens, "num_contextual"),
                                .num_targets = position(targets[b], tokens - contextual[b], "num_targets")};
    std::int32_t const query_end = position(range[2], tokens, "the end of queries");
    std::int32_t const query = position(range[1], query_end, "the first query");
    std::int32_t const key_end = position(range[4], tokens, "the end of keys");
    std::int32_t const key = position(range[3], key_end, "the first key");
    bool const is_empty = query == query_end || key == key_end;
    seen[i] = is_empty ? 0 : static_cast<std::uint8_t>(mask.visibility(query, query_end, key, key_end));
  }
  return out;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(headway, library) {
  library.def(
      "hstu_visibility(Tensor lengths, Tensor num_contextual, Tensor num_targets, Tensor ranges, bool causal, "
      "int window, int full_attention_tail) -> Tensor");
}

TORCH_LIBRARY_IMPL(headway, CPU, library) { library.impl("hstu_visibility", &visibility); }

}  // namespace headway::kernels
