// Collectives that reduce: another backend does the arithmetic (Gloo on CPU, NCCL on CUDA).

#include "coalesced_work.hpp"
#include "headway_backend.hpp"

#include <ATen/core/LegacyTypeDispatch.h>

namespace headway::c10d_backend {

namespace {

using c10d::OpType;

std::vector<at::Tensor> const& first_of(std::vector<std::vector<at::Tensor>> const& lists, char const* what) {
  TORCH_CHECK_VALUE(lists.size() == 1, "headway: ", what, " takes one list of tensors, not ", lists.size());
  return lists[0];
}

}  // namespace

Reducer& HeadwayBackend::reducer_for(at::Device device) {
  std::lock_guard const lock(mutex_);
  auto& reducer = reducers_[device.type()];
  if (!reducer) {
    auto const name = c10::DeviceTypeName(device.type(), /*lower_case=*/true);
    auto const store = c10::make_intrusive<c10d::PrefixStore>("reducer/" + name, store_);
    reducer =
        std::make_unique<Reducer>([make = make_reducer_, store, rank = getRank(), size = getSize(),
                                   timeout = timeout_.load(), name] { return make(store, rank, size, timeout, name); });
  }
  return *reducer;
}

c10::intrusive_ptr<c10d::Work> HeadwayBackend::delegate(WorkTitle const& title, std::vector<at::Tensor> const& inputs,
                                                        Reducer::Call call, std::optional<FinishingTouch> touch) {
  TORCH_CHECK_VALUE(!inputs.empty(), "headway: ", title.name, " needs a tensor");
  auto const handle = this->handle();
  translate_errors(title.name, [&] {
    if (auto const health = handle->group().health(); !health.ok()) throw comm::OperationError(health);
  });
  if (inputs[0].is_cuda()) {
    // NCCL goes by the current stream, which is the caller's: the call cannot wait in a queue. Making NCCL's group
    // needs no other rank.
    auto const reducer = reducer_for(inputs[0].device()).backend(title.timeout);
    TORCH_CHECK_WITH(DistBackendError, reducer, "headway: NCCL could not be made within ", title.timeout.count(),
                     " ms for ", title.name);
    return hand_out(call(*reducer));
  }
  auto const fail_group = [weak = std::weak_ptr(handle)](std::string const& reason) { abort_if_alive(weak, reason); };
  auto const work = c10::make_intrusive<DelegatedWork>(title, getRank(), inputs, handle, std::move(touch));
  reducer_for(inputs[0].device()).start(work, std::move(call), fail_group);
  return hand_out(work);
}

c10::intrusive_ptr<c10d::Work> HeadwayBackend::allreduce(std::vector<at::Tensor>& tensors,
                                                         c10d::AllreduceOptions const& options) {
  bool const is_sparse = !tensors.empty() && tensors[0].is_sparse();
  char const* const name = is_sparse ? "headway:sparse_all_reduce" : "headway:all_reduce";
  return delegate(title(OpType::ALLREDUCE, name, options.timeout), tensors,
                  [tensors, options](Backend& reducer) mutable { return reducer.allreduce(tensors, options); });
}

c10::intrusive_ptr<c10d::Work> HeadwayBackend::allreduce_sparse(std::vector<at::Tensor>& tensors,
                                                                c10d::AllreduceOptions const& options) {
  return delegate(title(OpType::_ALLREDUCE_SPARSE, "headway:sparse_all_reduce", options.timeout), tensors,
                  [tensors, options](Backend& reducer) mutable { return reducer.allreduce_sparse(tensors, options); });
}

c10::intrusive_ptr<c10d::Work> HeadwayBackend::allreduce_coalesced(std::vector<at::Tensor>& tensors,
                                                                   c10d::AllreduceCoalescedOptions const& options) {
  return delegate(
      title(OpType::ALLREDUCE_COALESCED, "headway:all_reduce", options.timeout), tensors,
      [tensors, options](Backend& reducer) mutable { return reducer.allreduce_coalesced(tensors, options); });
}

c10::intrusive_ptr<c10d::Work> HeadwayBackend::reduce(std::vector<at::Tensor>& tensors,
                                                      c10d::ReduceOptions const& options) {
  return delegate(title(OpType::REDUCE, "headway:reduce", options.timeout), tensors,
                  [tensors, options](Backend& reducer) mutable { return reducer.reduce(tensors, options); });
}

c10::intrusive_ptr<c10d::Work> HeadwayBackend::reduce_and_keep_part(std::vector<at::Tensor> const& inputs,
                                                                    std::vector<at::Tensor> buffers,
                                                                    std::vector<at::Tensor> parts,
                                                                    std::vector<at::Tensor> outputs,
                                                                    c10d::ReduceScatterOptions const& options) {
  c10d::AllreduceOptions reduce_options;
  reduce_options.reduceOp = options.reduceOp;
  reduce_options.timeout = options.timeout;
  auto reduce = [buffers, reduce_options, rank = getRank()](Backend& reducer) {
    std::vector<c10::intrusive_ptr<c10d::Work>> works;
    for (auto const& buffer : buffers) {
      std::vector<at::Tensor> one{buffer};
      works.push_back(reducer.allreduce(one, reduce_options));
    }
    return c10::intrusive_ptr<c10d::Work>(c10::make_intrusive<CoalescedWork>(rank, std::move(works)));
  };
  auto keep_part = [parts, outputs] {
    at::AutoDispatchBelowADInplaceOrView const no_autograd;
    for (std::size_t i = 0; i < outputs.size(); ++i) outputs[i].copy_(parts[i].view_as(outputs[i]));
  };
  return delegate(title(OpType::REDUCE_SCATTER, "headway:reduce_scatter", options.timeout), inputs, std::move(reduce),
                  FinishingTouch{std::move(keep_part), outputs});
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
  if (!outputs[0].device().is_cpu()) {
    return delegate(title(OpType::REDUCE_SCATTER, "headway:reduce_scatter", options.timeout), list,
                    [outputs, inputs, options](Backend& reducer) mutable {
                      return reducer.reduce_scatter(outputs, inputs, options);
                    });
  }
  at::AutoDispatchBelowADInplaceOrView const no_autograd;
  std::vector<at::Tensor> flat;
  std::int64_t first = 0;
  for (std::size_t rank = 0; rank < list.size(); ++rank) {
    if (rank < static_cast<std::size_t>(getRank())) first += list[rank].numel();
    flat.push_back(list[rank].reshape({-1}));
  }
  auto const buffer = at::cat(flat);
  return reduce_and_keep_part(list, {buffer}, {buffer.narrow(0, first, mine.numel())}, outputs, options);
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
  if (!outputs[0].device().is_cpu()) {
    return delegate(title(OpType::_REDUCE_SCATTER_BASE, "headway:reduce_scatter", options.timeout), inputs,
                    [outputs, inputs, options](Backend& reducer) mutable {
                      return reducer.reduce_scatter_tensor_coalesced(outputs, inputs, options);
                    });
  }
  at::AutoDispatchBelowADInplaceOrView const no_autograd;
  std::vector<at::Tensor> buffers;
  std::vector<at::Tensor> parts;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    TORCH_CHECK_VALUE(inputs[i].numel() == outputs[i].numel() * getSize(), "headway: reduce_scatter_tensor of ",
                      inputs[i].numel(), " elements on ", getSize(), " ranks cannot fill an output of ",
                      outputs[i].numel());
    buffers.push_back(inputs[i].clone(at::MemoryFormat::Contiguous).view({-1}));
    parts.push_back(buffers.back().narrow(0, outputs[i].numel() * getRank(), outputs[i].numel()));
  }
  return reduce_and_keep_part(inputs, std::move(buffers), std::move(parts), outputs, options);
}

void HeadwayBackend::monitoredBarrier(c10d::BarrierOptions const& options, bool wait_all_ranks) {
  auto const timeout = options.timeout.count() >= 0 ? options.timeout : timeout_.load();
  auto const reducer = reducer_for(at::kCPU).backend(timeout);
  TORCH_CHECK_WITH(DistBackendError, reducer, "headway: Rank ", getRank(), " timed out in monitoredBarrier after ",
                   timeout.count(), " ms: not all ranks are there");
  reducer->monitoredBarrier(options, wait_all_ranks);
}

}  // namespace headway::c10d_backend
