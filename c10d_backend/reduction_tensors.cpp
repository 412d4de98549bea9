#include "reduction_tensors.hpp"

#include "memory_overlap.hpp"
#include "work_tensors.hpp"

#include <ATen/core/LegacyTypeDispatch.h>

#include <cstdint>
#include <limits>
#include <string>
#include <utility>

namespace headway::c10d_backend {

namespace {

constexpr std::int64_t kTopBit = std::numeric_limits<std::int64_t>::min();

std::string name_of_type(at::ScalarType type) { return data_type_name(static_cast<comm::DataType>(type)); }

void expects_one_kind(std::string_view verb, std::vector<at::Tensor> const& tensors) {
  TORCH_CHECK_VALUE(!tensors.empty(), "headway: ", verb, " needs a tensor");
  auto const& first = tensors[0];
  TORCH_CHECK_NOT_IMPLEMENTED(first.device().is_cpu() || first.device().is_cuda(), "headway: ", verb,
                              " does not reduce tensors on ", first.device(), ", only those on CPUs and CUDA devices");
  for (auto const& tensor : tensors) {
    TORCH_CHECK_VALUE(tensor.device() == first.device(), "headway: ", verb, " of tensors on ", first.device(),
                      " and on ", tensor.device(), ": those of one call must be on one device");
    TORCH_CHECK_VALUE(tensor.scalar_type() == first.scalar_type(), "headway: ", verb, " of tensors of ",
                      name_of_type(first.scalar_type()), " and of ", name_of_type(tensor.scalar_type()),
                      ": those of one call must be of one type");
    TORCH_CHECK_VALUE(tensor.layout() == first.layout(), "headway: ", verb, " of a tensor with layout ", first.layout(),
                      " and one with ", tensor.layout());
  }
}

void expects_sparse_sum(std::string_view verb, c10d::ReduceOp const& operation, at::Tensor const& tensor) {
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.layout() == at::kSparse, "headway: ", verb, " cannot reduce tensors with",
                              " layout ", tensor.layout(), ", only strided and sparse COO tensors");
  TORCH_CHECK_VALUE(operation == c10d::ReduceOp::SUM && gloo_adds_sparse(tensor.scalar_type()), "headway: ", verb,
                    " cannot reduce sparse tensors of ", name_of_type(tensor.scalar_type()), " with ",
                    name_of_operation(operation.op_),
                    ": Gloo, which reduces CPU tensors, has only SUM, of float32, float64,",
                    " bfloat16, complex64, complex128, uint8, int8, int32 and int64");
}

GlooForm expect_form(std::string_view verb, c10d::ReduceOp const& operation, at::ScalarType type) {
  auto const form = gloo_form(type, operation.op_);
  TORCH_CHECK_VALUE(form, "headway: ", verb, " cannot reduce tensors of ", name_of_type(type), " with ",
                    name_of_operation(operation.op_),
                    ": Gloo, which reduces CPU tensors, has no such operation; convert them", " to another type first");
  return *form;
}

/// Throws for lazily conjugated or negated tensors: NCCL sees the memory only.
void expects_resolved(std::string_view verb, std::vector<at::Tensor> const& tensors) {
  for (auto const& tensor : tensors) {
    TORCH_CHECK_VALUE(!tensor.is_conj() && !tensor.is_neg(), "headway: ", verb, " on ", tensor.device(),
                      " cannot reduce a tensor that is lazily conjugated or negated: pass",
                      " tensor.resolve_conj().resolve_neg()");
  }
}

}  // namespace

ReductionTensors::ReductionTensors(std::string_view verb, c10d::ReduceOp operation,
                                   std::vector<at::Tensor> const& tensors)
    : operation_(std::move(operation)) {
  expects_one_kind(verb, tensors);
  auto const& first = tensors[0];
  if (first.is_cpu() && first.layout() != at::kStrided) {
    expects_sparse_sum(verb, operation_, first);
  } else if (first.is_cpu()) {
    form_ = expect_form(verb, operation_, first.scalar_type());
    if (form_->operation != operation_.op_) operation_ = form_->operation;
  } else {
    expects_resolved(verb, tensors);
  }
}

bool ReductionTensors::is_plain(at::Tensor const& tensor) const {
  return tensor.scalar_type() == form_->type && !form_->flips_sign && tensor.is_contiguous() && !tensor.is_conj() &&
         !tensor.is_neg();
}

at::Tensor ReductionTensors::in_place(at::Tensor const& tensor) {
  if (!form_ || is_plain(tensor)) return tensor;
  auto stand_in = scratch(tensor);
  deliver(stand_in, tensor);
  return stand_in;
}

at::Tensor ReductionTensors::scratch(at::ArrayRef<at::Tensor> tensors) {
  at::AutoDispatchBelowADInplaceOrView const no_autograd;
  has_stand_ins_ = true;
  std::int64_t count = 0;
  for (auto const& tensor : tensors) count += tensor.numel();
  auto all = at::empty({count}, form_->type);
  std::int64_t first = 0;
  for (auto const& tensor : tensors) {
    all.narrow(0, first, tensor.numel()).view(tensor.sizes()).copy_(tensor);
    first += tensor.numel();
  }
  return form_->flips_sign ? all.bitwise_xor_(kTopBit) : all;
}

void ReductionTensors::deliver(at::Tensor const& part, at::Tensor const& output) {
  has_stand_ins_ = true;
  deliveries_.push_back({part, output, form_ && form_->flips_sign});
}

std::optional<FinishingTouch> ReductionTensors::touch(std::vector<at::Tensor> results) const {
  if (!has_stand_ins_) return std::nullopt;
  auto run = [deliveries = deliveries_] {
    at::AutoDispatchBelowADInplaceOrView const no_autograd;
    for (auto const& [part, output, flips_sign] : deliveries) {
      output.copy_((flips_sign ? part.bitwise_xor(kTopBit) : part).view_as(output));
    }
  };
  return FinishingTouch{std::move(run), std::move(results)};
}

}  // namespace headway::c10d_backend
