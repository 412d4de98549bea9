// SPDX-License-Identifier: Apache-2.0

// HSTU attention on sm_90a: the conditions under which its kernels run, and dispatch by dim. A reason for refusal is
// a text that goes into a warning, so it names what the caller could change.

#include "headway/kernels/hstu_attention.hpp"
#include "hstu/cuda/sm90/attention.hpp"
#include "hstu/cuda/tile/time_table.cuh"

#include <cstdint>
#include <limits>
#include <string>

namespace headway::kernels {
namespace {

/// Can TMA load these rows of 16-bit numbers, and can they be written 16 bytes at a time? Strides of 0 are refused.
template <class Pointer>
[[nodiscard]] bool begins_at_units_of_16_bytes(JaggedHeads<Pointer> const& rows) {
  return reinterpret_cast<std::uintptr_t>(rows.data) % 16 == 0 && rows.token_stride > 0 && rows.token_stride % 8 == 0 &&
         rows.head_stride > 0 && rows.head_stride % 8 == 0;
}

}  // namespace

std::string why_not_sm90(HstuForwardArgs const& args) {
  if (args.type != ElementType::kBfloat16 && args.type != ElementType::kFloat16) return "elements are not of 16 bits";
  bool const has_dim = args.dim == 32 || args.dim == 64 || args.dim == 128 || args.dim == 256;
  if (!has_dim || args.value_dim != args.dim) {
    return "dim and value_dim are not equal and 32, 64, 128 or 256";
  }
  if (!begins_at_units_of_16_bytes(args.query) || !begins_at_units_of_16_bytes(args.key) ||
      !begins_at_units_of_16_bytes(args.value) || !begins_at_units_of_16_bytes(args.out)) {
    return "rows do not begin at multiples of 16 bytes";
  }
  if (args.bias.has_time() && args.bias.num_time_bounds > TimeTable::kMaxBounds)
    return "there are too many time bounds";
  if (args.sequences.num_keys > std::numeric_limits<std::int32_t>::max()) return "there are 2^31 tokens or more";
  return "";
}

void sm90_forward_async(HstuForwardArgs const& args, CudaStream stream, std::int32_t* tiles_taken) {
  if (args.dim == 32) sm90_forward_of_dim<32>(args, stream, tiles_taken);
  if (args.dim == 64) sm90_forward_of_dim<64>(args, stream, tiles_taken);
  if (args.dim == 128) sm90_forward_of_dim<128>(args, stream, tiles_taken);
  if (args.dim == 256) sm90_forward_of_dim<256>(args, stream, tiles_taken);
}

std::string why_not_sm90(HstuBackwardArgs const& args) {
  HstuForwardArgs forward = args.forward;
  // why_not_sm90() only tests its alignment; `out` itself may be unset in a backward call.
  forward.out = args.grad_query;
  std::string const why = why_not_sm90(forward);
  if (!why.empty()) return why;
  if (forward.dim == 256 && (forward.bias.has_position() || forward.bias.has_time())) {
    return "there are gradients of more than 128 columns with a bias";
  }
  if (!begins_at_units_of_16_bytes(args.grad_out) || !begins_at_units_of_16_bytes(args.grad_query) ||
      !begins_at_units_of_16_bytes(args.grad_key) || !begins_at_units_of_16_bytes(args.grad_value)) {
    return "rows of gradients do not begin at multiples of 16 bytes";
  }
  bool const wants_weights = args.grad_position_weights != nullptr || args.grad_time_weights != nullptr;
  if (wants_weights && forward.options.determinism == Determinism::kDeterministic) {
    return "gradients of bias weights are to be deterministic";
  }
  return "";
}

void sm90_backward_async(HstuBackwardArgs const& args, CudaStream stream, void* workspace) {
  if (args.forward.dim == 32) sm90_backward_of_dim<32>(args, stream, workspace);
  if (args.forward.dim == 64) sm90_backward_of_dim<64>(args, stream, workspace);
  if (args.forward.dim == 128) sm90_backward_of_dim<128>(args, stream, workspace);
  if (args.forward.dim == 256) sm90_backward_of_dim<256>(args, stream, workspace);
}

}  // namespace headway::kernels
