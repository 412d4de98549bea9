// Collectives that reduce. Another backend does the arithmetic: Gloo on CPU, NCCL on CUDA.

#include "coalesced_work.hpp"
#include "headway_backend.hpp"
#include "memory_overlap.hpp"
#include "reduction_tensors.hpp"

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
void note_parts(BlockMap& blocks, at::Tensor const& output, int own_rank, int size, Part&& part) {
  blocks.write(bytes_of(output));
  for (int rank = 0; rank < size; ++rank) {
    std::span<std::byte const> const bytes = part(static_cast<std::size_t>(rank));
    rank == own_rank ? blocks.read_own(bytes, bytes_of(output), rank) : blocks.read(bytes, rank);
  }
}

}  // namespace

std::shared_ptr<Reducer> HeadwayBackend::reducer_for(at::Device device) {
  std::lock_guard const lock(mutex_);
  auto& reducer = reducers_[device.type()];
  if (!reducer) {
    auto const name = c10::DeviceTypeName(device.type(), /*lower_case=*/true);
    auto const store = c10::make_intrusive<c10d::PrefixStore>(reducer_prefix_ + name, store_);
    auto make_reducer = [make = make_reducer_, store, rank = getRank(), size = getSize(), timeout = timeout_.load(),
                         name, address = own_address_] { return make(store, rank, size, timeout, name, address); };
    reducer = std::make_shared<Reducer>(std::move(make_reducer), handle_);
    if (device.is_cpu()) reducer->end_with_program();
  }
  return reducer;
}

c10::intrusive_ptr<c10d::Work> HeadwayBackend::delegate(WorkTitle const& title, std::vector<at::Tensor> const& inputs,
                                                        Reducer::Call call, std::optional<FinishingTouch> touch) {
  auto const handle = this->handle();
  translate_errors(title.name, [&] {
    if (auto const health = handle->group().health(); !health.ok()) throw comm::OperationError(health);
  });
  auto checked_call = [call = std::move(call), verb = title.verb()](Backend& reducer) {
    return translate_delegate_errors(verb, [&] { return call(reducer); });
  };
  if (inputs[0].is_cuda()) {
    // NCCL uses the current stream, which is the caller's, so the call must not wait in a queue. Creating NCCL's group
    // involves no other rank.
    auto const reducer = reducer_for(inputs[0].device())->backend(title.timeout);
    TORCH_CHECK_WITH(DistBackendError, reducer, "headway: NCCL could not be made within ", title.timeout.count(),
                     " ms for ", title.verb());
    return hand_out(checked_call(*reducer));
  }
  auto const fail_group = [weak = std::weak_ptr(handle)](std::string const& reason) {
    fail_by_symptom(weak, reason, kSymptomTime);
  };
  auto const work = c10::make_intrusive<DelegatedWork>(title, getRank(), inputs, handle, std::move(touch));
  reducer_for(inputs[0].device())->start(work, std::move(checked_call), fail_group);
  return hand_out(work);
}

template <typename ReduceOptions>
c10::intrusive_ptr<c10d::Work> HeadwayBackend::reduce_in_place(OpType type, char const* name,
                                                               std::vector<at::Tensor> const& tensors,
                                                               ReduceOptions options,
                                                               ReduceMethod<ReduceOptions> method, Role role) {
  ReductionTensors reduction(verb_of(name), options.reduceOp, tensors);
  bool const is_dense = tensors[0].layout() == at::kStrided;
  if (is_dense && role == Role::kReceiver) expects_disjoint_outputs(verb_of(name), tensors);
  bool const is_given_away = is_dense && role == Role::kContributor && tensors[0].is_cpu();
  std::vector<at::Tensor> given;
  for (auto const& tensor : tensors) {
    given.push_back(is_given_away ? reduction.scratch(tensor) : reduction.in_place(tensor));
  }
  options.reduceOp = reduction.operation();
  auto call = [given = std::move(given), options, method](Backend& reducer) mutable {
    return (reducer.*method)(given, options);
  };
  return delegate(title(type, name, options.timeout), tensors, std::move(call), reduction.touch(tensors));
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

c10::intrusive_ptr<c10d::Work> HeadwayBackend::reduce_and_keep_part(WorkTitle const& title,
                                                                    std::vector<at::Tensor> const& inputs,
                                                                    std::vector<at::Tensor> const& outputs,
                                                                    ReductionTensors const& reduction,
                                                                    std::vector<at::Tensor> buffers) {
  c10d::AllreduceOptions options;
  options.reduceOp = reduction.operation();
  options.timeout = title.timeout;
  auto reduce = [buffers = std::move(buffers), options, rank = getRank()](Backend& reducer) {
    std::vector<c10::intrusive_ptr<c10d::Work>> works;
    for (auto const& buffer : buffers) {
      std::vector<at::Tensor> one{buffer};
      works.push_back(reducer.allreduce(one, options));
    }
    return c10::intrusive_ptr<c10d::Work>(c10::make_intrusive<CoalescedWork>(rank, std::move(works)));
  };
  return delegate(title, inputs, std::move(reduce), reduction.touch(outputs));
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
    note_parts(blocks, outputs[0], getRank(), getSize(), [&](std::size_t rank) { return bytes_of(list[rank]); });
    blocks.expect_disjoint("reduce_scatter");
    return delegate(title(OpType::REDUCE_SCATTER, "headway:reduce_scatter", options.timeout), list,
                    [outputs, inputs, options](Backend& reducer) mutable {
                      return reducer.reduce_scatter(outputs, inputs, options);
                    });
  }
  auto const buffer = reduction.scratch(list);
  std::int64_t first = 0;
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(getRank()); ++rank) first += list[rank].numel();
  reduction.deliver(buffer.narrow(0, first, mine.numel()), outputs[0]);
  return reduce_and_keep_part(title(OpType::REDUCE_SCATTER, "headway:reduce_scatter", options.timeout), list, outputs,
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
      note_parts(blocks, outputs[i], getRank(), getSize(), [&](std::size_t rank) {
        return bytes_of(inputs[i]).subspan(outputs[i].nbytes() * rank, outputs[i].nbytes());
      });
    }
    blocks.expect_disjoint("reduce_scatter_tensor");
    return delegate(title(OpType::_REDUCE_SCATTER_BASE, "headway:reduce_scatter", options.timeout), inputs,
                    [outputs, inputs, options](Backend& reducer) mutable {
                      return reducer.reduce_scatter_tensor_coalesced(outputs, inputs, options);
                    });
  }
  std::vector<at::Tensor> buffers;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    buffers.push_back(reduction.scratch(inputs[i]));
    reduction.deliver(buffers.back().narrow(0, outputs[i].numel() * getRank(), outputs[i].numel()), outputs[i]);
  }
  return reduce_and_keep_part(title(OpType::_REDUCE_SCATTER_BASE, "headway:reduce_scatter", options.timeout), inputs,
                              outputs, reduction, std::move(buffers));
}

void HeadwayBackend::monitoredBarrier(c10d::BarrierOptions const& options, bool wait_all_ranks) {
  auto const timeout = options.timeout.count() >= 0 ? options.timeout : timeout_.load();
  auto const reducer = reducer_for(at::kCPU)->backend(timeout);
  TORCH_CHECK_WITH(DistBackendError, reducer, "headway: Rank ", getRank(), " timed out in monitoredBarrier after ",
                   timeout.count(), " ms: not all ranks are there");
  reducer->monitoredBarrier(options, wait_all_ranks);
}

}  // namespace headway::c10d_backend
