// SPDX-License-Identifier: Apache-2.0

// Collectives that reduce. Another backend does the arithmetic: Gloo on CPU, NCCL on CUDA.
//
// Idea: a headway group creates a Gloo or NCCL group of the same ranks when it first reduces, the delegate. The call
// is passed on with tensors that the delegate accepts (reduction/reduction_tensors.hpp), and the work that callers
// get ties the two groups together: if either fails, the other fails with the same reason.
//
// Example: all_reduce of a strided float32 view on a CPU. The view is copied to a contiguous temporary, Gloo reduces
// the temporary, and the epilogue copies the result back before the work counts as complete.
//
// Invariants:
// - CPU reductions start in the order of the calls, also those that arrive while Gloo's group is being created.
// - On CUDA the call is made on the caller's thread, because NCCL orders itself to the current stream.
// - On CPU a reduce_scatter is an all_reduce of a copy, of which each rank keeps its part.
// - A rank that contributes to a reduce but gets no result passes a copy: Gloo leaves partial sums in every tensor.

#include "backend/headway_backend.hpp"
#include "reduction/reduction_tensors.hpp"
#include "tensors/memory_overlap.hpp"
#include "work/coalesced_work.hpp"

#include <algorithm>

namespace headway::c10d_backend {

namespace {

using c10d::OpType;

std::vector<at::Tensor> const& first_of(std::vector<std::vector<at::Tensor>> const& lists, char const* what) {
  TORCH_CHECK_VALUE(lists.size() == 1, "headway: ", what, " takes one list of tensors, not ", lists.size());
  return lists[0];
}

std::vector<at::Tensor> together(std::vector<at::Tensor> tensors, std::vector<at::Tensor> const& others) {
  tensors.insert(tensors.end(), others.begin(), others.end());
  return tensors;
}

/// Adds the memory of a reduce_scatter by NCCL to `blocks`: `part(r)` of the input is read for rank r, `output` is
/// written.
template <typename Part>
void add_parts(BlockMap& blocks, at::Tensor const& output, int own_rank, int size, Part&& part) {
  blocks.write(bytes_of(output));
  for (int rank = 0; rank < size; ++rank) {
    std::span<std::byte const> const bytes = part(static_cast<std::size_t>(rank));
    rank == own_rank ? blocks.read_own(bytes, bytes_of(output), rank) : blocks.read(bytes, rank);
  }
}

/// Makes `delegate` report completions to the hooks of the group. Callers get works of NCCL itself on CUDA, so nothing
/// else of Headway sees them complete.
void forward_completions([[maybe_unused]] c10d::Backend& delegate,
                         [[maybe_unused]] std::weak_ptr<GroupHandle> const& group) {
#if HEADWAY_TORCH_HAS_COMPLETION_HOOKS
  if (!delegate.supportsCompletionHooks()) return;
  delegate.registerCompletionHook(0, [group](c10d::CompletionHookArgs const& completed) {
    if (auto const alive = group.lock()) alive->hooks().fire_completion(completed.completionKey, completed.duration_ms);
  });
#endif
}

}  // namespace

std::shared_ptr<ReductionDelegate> HeadwayBackend::delegate_for(at::Device device) {
  std::lock_guard const lock(mutex_);
  auto& delegate = delegates_[device.type()];
  if (!delegate) {
    auto const name = c10::DeviceTypeName(device.type(), /*lower_case=*/true);
    auto const store = c10::make_intrusive<c10d::PrefixStore>(delegate_prefix_ + name, store_);
    auto const timeout =
        std::min<std::chrono::milliseconds>(timeout_.load() + extension_.load(), comm::kLongestTimeout);
    auto make_delegate = [make = make_delegate_, store, rank = getRank(), size = getSize(), timeout, name,
                          address = own_address_, weak = std::weak_ptr(handle_), is_cpu = device.is_cpu()] {
      auto made = make(store, rank, size, timeout, name, address);
      if (!is_cpu) forward_completions(*made, weak);
      return made;
    };
    delegate = std::make_shared<ReductionDelegate>(std::move(make_delegate), handle_);
    if (device.is_cpu()) delegate->end_with_program();
  }
  return delegate;
}

c10::intrusive_ptr<c10d::Work> HeadwayBackend::launch_on_delegate(OpInfo const& op,
                                                                  std::vector<at::Tensor> const& inputs,
                                                                  ReductionDelegate::Call call,
                                                                  std::optional<Epilogue> epilogue) {
  auto const handle = this->handle();
  translate_errors(op.name, [&] {
    if (auto const health = handle->group().monitor().health(); !health.ok()) throw comm::OperationError(health);
  });
  auto checked_call = [call = std::move(call), op_name = op.op_name()](Backend& delegate) {
    return translate_delegate_errors(op_name, [&] { return call(delegate); });
  };
  if (inputs[0].is_cuda()) {
    // NCCL uses the current stream, which is the caller's, so the call must not wait in a queue. Creating NCCL's group
    // involves no other rank.
    auto const delegate = delegate_for(inputs[0].device())->backend(op.timeout);
    TORCH_CHECK_WITH(DistBackendError, delegate, "headway: NCCL could not be made within ", op.timeout.count(),
                     " ms for ", op.op_name());
    return record_if_coalescing(checked_call(*delegate));
  }
  // Waits up to kDetectionTime first: the group may find out meanwhile which rank was lost, and its error names it.
  auto const fail_group = [weak = std::weak_ptr(handle)](std::string const& reason) {
    fail_group_for_delegate(weak, reason, kDetectionTime);
  };
  auto const work = c10::make_intrusive<DelegatedWork>(op, getRank(), inputs, handle, std::move(epilogue));
  delegate_for(inputs[0].device())->start(work, std::move(checked_call), fail_group);
  return record_if_coalescing(work);
}

template <typename ReduceOptions>
c10::intrusive_ptr<c10d::Work> HeadwayBackend::reduce_in_place(OpType type, char const* name,
                                                               std::vector<at::Tensor> const& tensors,
                                                               ReduceOptions options,
                                                               ReduceMethod<ReduceOptions> method, Role role) {
  ReductionTensors reduction(op_name_of(name), options.reduceOp, tensors);
  bool const is_dense = tensors[0].layout() == at::kStrided;
  if (is_dense && role == Role::kReceiver) expects_disjoint_outputs(op_name_of(name), tensors);
  bool const needs_copy = is_dense && role == Role::kContributor && tensors[0].is_cpu();
  std::vector<at::Tensor> given;
  for (auto const& tensor : tensors) {
    given.push_back(needs_copy ? reduction.scratch(tensor) : reduction.in_place(tensor));
  }
  options.reduceOp = reduction.operation();
  auto call = [given = std::move(given), options, method](Backend& delegate) mutable {
    return (delegate.*method)(given, options);
  };
  return launch_on_delegate(op_info(type, name, options.timeout), tensors, std::move(call),
                            reduction.epilogue(tensors));
}

c10::intrusive_ptr<c10d::Work> HeadwayBackend::allreduce(std::vector<at::Tensor>& tensors,
                                                         c10d::AllreduceOptions const& options) {
  bool const is_sparse = !tensors.empty() && tensors[0].is_sparse();
  char const* const name = is_sparse ? "headway:sparse_all_reduce" : "headway:all_reduce";
  return reduce_in_place(OpType::ALLREDUCE, name, tensors, options, &Backend::allreduce);
}

c10::intrusive_ptr<c10d::Work> HeadwayBackend::allreduce_sparse(std::vector<at::Tensor>& tensors,
                                                                c10d::AllreduceOptions const& options) {
  return reduce_in_place(OpType::_ALLREDUCE_SPARSE, "headway:sparse_all_reduce", tensors, options,
                         &Backend::allreduce_sparse);
}

c10::intrusive_ptr<c10d::Work> HeadwayBackend::allreduce_coalesced(std::vector<at::Tensor>& tensors,
                                                                   c10d::AllreduceCoalescedOptions const& options) {
  return reduce_in_place(OpType::ALLREDUCE_COALESCED, "headway:all_reduce", tensors, options,
                         &Backend::allreduce_coalesced);
}

c10::intrusive_ptr<c10d::Work> HeadwayBackend::reduce(std::vector<at::Tensor>& tensors,
                                                      c10d::ReduceOptions const& options) {
  // Gloo leaves partial results in the tensors of all ranks, so ranks that get no result reduce a copy.
  auto const role = options.rootRank == getRank() ? Role::kReceiver : Role::kContributor;
  return reduce_in_place(OpType::REDUCE, "headway:reduce", tensors, options, &Backend::reduce, role);
}

c10::intrusive_ptr<c10d::Work> HeadwayBackend::reduce_and_keep_part(OpInfo const& op,
                                                                    std::vector<at::Tensor> const& inputs,
                                                                    std::vector<at::Tensor> const& outputs,
                                                                    ReductionTensors const& reduction,
                                                                    std::vector<at::Tensor> buffers) {
  c10d::AllreduceOptions options;
  options.reduceOp = reduction.operation();
  options.timeout = op.timeout;
  auto reduce = [buffers = std::move(buffers), options, rank = getRank()](Backend& delegate) {
    std::vector<c10::intrusive_ptr<c10d::Work>> works;
    for (auto const& buffer : buffers) {
      std::vector<at::Tensor> one{buffer};
      works.push_back(delegate.allreduce(one, options));
    }
    return c10::intrusive_ptr<c10d::Work>(c10::make_intrusive<CoalescedWork>(rank, std::move(works)));
  };
  return launch_on_delegate(op, inputs, std::move(reduce), reduction.epilogue(outputs));
}

c10::intrusive_ptr<c10d::Work> HeadwayBackend::reduce_scatter(std::vector<at::Tensor>& outputs,
                                                              std::vector<std::vector<at::Tensor>>& inputs,
                                                              c10d::ReduceScatterOptions const& options) {
  auto const& list = first_of(inputs, "reduce_scatter");
  TORCH_CHECK_VALUE(outputs.size() == 1, "headway: reduce_scatter takes one output, not ", outputs.size());
  TORCH_CHECK_VALUE(list.size() == static_cast<std::size_t>(getSize()), "headway: reduce_scatter on ", getSize(),
                    " ranks takes as many inputs, not ", list.size());
  auto const& mine = list[static_cast<std::size_t>(getRank())];
  TORCH_CHECK_VALUE(mine.numel() == outputs[0].numel(), "headway: reduce_scatter of ", mine.numel(),
                    " elements for rank ", getRank(), " needs an output of as many, not ", outputs[0].numel());
  ReductionTensors reduction("reduce_scatter", options.reduceOp, together(list, outputs));
  expects_disjoint_outputs("reduce_scatter", outputs);
  if (outputs[0].is_cuda()) {
    BlockMap blocks;
    add_parts(blocks, outputs[0], getRank(), getSize(), [&](std::size_t rank) { return bytes_of(list[rank]); });
    blocks.expect_disjoint("reduce_scatter");
    return launch_on_delegate(op_info(OpType::REDUCE_SCATTER, "headway:reduce_scatter", options.timeout), list,
                              [outputs, inputs, options](Backend& delegate) mutable {
                                return delegate.reduce_scatter(outputs, inputs, options);
                              });
  }
  auto const buffer = reduction.scratch(list);
  std::int64_t first = 0;
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(getRank()); ++rank) first += list[rank].numel();
  reduction.copy_back(buffer.narrow(0, first, mine.numel()), outputs[0]);
  return reduce_and_keep_part(op_info(OpType::REDUCE_SCATTER, "headway:reduce_scatter", options.timeout), list, outputs,
                              reduction, {buffer});
}

c10::intrusive_ptr<c10d::Work> HeadwayBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                                    c10d::ReduceScatterOptions const& options) {
  std::vector<at::Tensor> outputs{output};
  std::vector<at::Tensor> inputs{input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, options);
}

c10::intrusive_ptr<c10d::Work> HeadwayBackend::reduce_scatter_tensor_coalesced(
    std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs, c10d::ReduceScatterOptions const& options) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size() && !inputs.empty(), "headway: reduce_scatter_tensor of ",
                    inputs.size(), " inputs needs as many outputs, not ", outputs.size());
  ReductionTensors reduction("reduce_scatter_tensor", options.reduceOp, together(inputs, outputs));
  expects_disjoint_outputs("reduce_scatter_tensor", outputs);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    TORCH_CHECK_VALUE(inputs[i].numel() == outputs[i].numel() * getSize(), "headway: reduce_scatter_tensor of ",
                      inputs[i].numel(), " elements on ", getSize(), " ranks cannot fill an output of ",
                      outputs[i].numel());
  }
  if (outputs[0].is_cuda()) {
    BlockMap blocks;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      add_parts(blocks, outputs[i], getRank(), getSize(), [&](std::size_t rank) {
        return bytes_of(inputs[i]).subspan(outputs[i].nbytes() * rank, outputs[i].nbytes());
      });
    }
    blocks.expect_disjoint("reduce_scatter_tensor");
    return launch_on_delegate(op_info(OpType::_REDUCE_SCATTER_BASE, "headway:reduce_scatter", options.timeout), inputs,
                              [outputs, inputs, options](Backend& delegate) mutable {
                                return delegate.reduce_scatter_tensor_coalesced(outputs, inputs, options);
                              });
  }
  std::vector<at::Tensor> buffers;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    buffers.push_back(reduction.scratch(inputs[i]));
    reduction.copy_back(buffers.back().narrow(0, outputs[i].numel() * getRank(), outputs[i].numel()), outputs[i]);
  }
  return reduce_and_keep_part(op_info(OpType::_REDUCE_SCATTER_BASE, "headway:reduce_scatter", options.timeout), inputs,
                              outputs, reduction, std::move(buffers));
}

}  // namespace headway::c10d_backend
