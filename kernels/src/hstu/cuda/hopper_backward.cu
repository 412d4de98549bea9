#include "hstu/cuda/hopper_backward.hpp"
#include "hstu/cuda/hopper_forward.hpp"
#include "hstu/cuda/rows_alignment.hpp"

#include <string>

namespace headway::kernels {

std::string why_not_for_hopper(HstuBackwardArgs const& args) {
  HstuForwardArgs forward = args.forward;
  // why_not_for_hopper() only tests its alignment; `out` itself may be unset in a backward call.
  forward.out = args.grad_query;
  std::string const why = why_not_for_hopper(forward);
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

void hopper_backward_async(HstuBackwardArgs const& args, CudaStream stream, void* workspace) {
  if (args.forward.dim == 32) hopper_backward_of_dim<32>(args, stream, workspace);
  if (args.forward.dim == 64) hopper_backward_of_dim<64>(args, stream, workspace);
  if (args.forward.dim == 128) hopper_backward_of_dim<128>(args, stream, workspace);
  if (args.forward.dim == 256) hopper_backward_of_dim<256>(args, stream, workspace);
}

}  // namespace headway::kernels
