// SPDX-License-Identifier: Apache-2.0

// Lazily conjugated and negated tensors in the operators of torch.distributed.
//
// Problem: before an operator runs, torch replaces such a tensor by a resolved copy. It copies the result back only if
// the operator's schema says that the argument is written. The schemas of c10d's operators do not say so, so results
// stay in the copies. Example: `x.conj().imag` is a negated view; a broadcast to it fills a copy of it.
//
// Idea: Headway's backend handles lazy tensors itself, so its operators get the tensors unchanged. For all other
// backends the tensors are resolved as torch does it.

#include "backend/headway_backend.hpp"
#include "torch_headers.hpp"

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/library.h>

#include <algorithm>

namespace headway::c10d_backend {

namespace {

constexpr c10::DispatchKeySet kLazyKeys({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative});

/// Operators of the c10d library that take tensors.
constexpr auto kOperators = std::to_array<char const*>(
    {"allreduce_", "allreduce_coalesced_", "reduce_", "reduce_scatter_", "_reduce_scatter_base_",
     "reduce_scatter_tensor_coalesced_", "broadcast_", "allgather_", "_allgather_base_", "allgather_coalesced_",
     "allgather_into_tensor_coalesced_", "gather_", "scatter_", "alltoall_", "alltoall_base_", "send", "recv_",
     "recv_any_source_"});

/// Device of a tensor or of the first tensor of a list; nothing for all other arguments.
std::optional<at::Device> device_of(c10::IValue const& argument) {
  if (argument.isTensor()) return argument.toTensor().device();
  if (argument.isTensorList() && !argument.toTensorList().empty()) return argument.toTensorList().get(0).device();
  return std::nullopt;
}

/// True if the call's process group uses a headway backend for the device of its first tensor.
bool is_for_headway(c10::ArrayRef<c10::IValue> arguments) {
  std::optional<at::Device> device;
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  auto const group_type = c10::getCustomClassType<c10::intrusive_ptr<c10d::ProcessGroup>>();
  for (auto const& argument : arguments) {
    if (!device) device = device_of(argument);
    if (argument.isCustomClass() && argument.type()->isSubtypeOf(*group_type)) {
      group = argument.toCustomClass<c10d::ProcessGroup>();
    }
  }
  if (!group || !device) return false;
  return dynamic_cast<HeadwayBackend*>(group->getBackend(device->type()).get()) != nullptr;
}

/// The tensor itself if it is not lazy, else a copy with conjugation and sign carried out.
at::Tensor resolve(at::Tensor const& tensor) { return tensor.resolve_conj().resolve_neg(); }

void resolve(c10::IValue& argument) {
  if (argument.isTensor()) {
    argument = resolve(argument.toTensor());
  } else if (argument.isTensorList()) {
    auto tensors = argument.toTensorVector();
    for (auto& tensor : tensors) tensor = resolve(tensor);
    argument = std::move(tensors);
  }
}

/// Boxed kernel of all operators: resolves the tensor arguments unless the backend is headway, then redispatches.
void call_with_lazy_tensors(c10::OperatorHandle const& operation, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  auto const arguments = torch::jit::last(*stack, operation.schema().arguments().size());
  if (!is_for_headway(arguments)) {
    std::for_each(stack->end() - static_cast<std::ptrdiff_t>(arguments.size()), stack->end(),
                  [](c10::IValue& argument) { resolve(argument); });
  }
  operation.redispatchBoxed(keys - kLazyKeys, stack);
}

void register_operators(torch::Library& library) {
  for (char const* const name : kOperators) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&call_with_lazy_tensors>());
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(c10d, Conjugate, library) { register_operators(library); }
TORCH_LIBRARY_IMPL(c10d, Negative, library) { register_operators(library); }

}  // namespace headway::c10d_backend
