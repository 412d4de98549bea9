// SPDX-License-Identifier: Apache-2.0

// Tensors in the form in which Gloo reduces them, and the way back.
//
// Example: MAX of uint64 values 1 and 2^63. Gloo compares int64, in which 2^63 would be the smallest number. So the
// copies have their top bit inverted: 1 becomes -2^63 + 1 and 2^63 becomes 0. Gloo returns 0, and inverting the bit
// again gives 2^63 (reduction/gloo_reduction.cpp has the table).
//
// Invariant: with temporaries, the caller's tensors change only in the epilogue, after the whole reduction.

#include "reduction/reduction_tensors.hpp"

#include "tensors/memory_overlap.hpp"
#include "tensors/work_tensors.hpp"

#include <ATen/core/LegacyTypeDispatch.h>

#include <cstdint>
#include <limits>
#include <string>
#include <utility>

namespace headway::c10d_backend {

namespace {

constexpr std::int64_t kTopBit = std::numeric_limits<std::int64_t>::min();

std::string name_of_type(at::ScalarType type) { return data_type_name(static_cast<comm::DataType>(type)); }

void expects_one_kind(std::string_view op_name, std::vector<at::Tensor> const& tensors) {
  TORCH_CHECK_VALUE(!tensors.empty(), "headway: ", op_name, " needs a tensor");
  auto const& first = tensors[0];
  TORCH_CHECK_NOT_IMPLEMENTED(first.device().is_cpu() || first.device().is_cuda(), "headway: ", op_name,
                              " does not reduce tensors on ", first.device(), ", only those on CPUs and CUDA devices");
  for (auto const& tensor : tensors) {
    TORCH_CHECK_VALUE(tensor.device() == first.device(), "headway: ", op_name, " of tensors on ", first.device(),
                      " and on ", tensor.device(), ": those of one call must be on one device");
    TORCH_CHECK_VALUE(tensor.scalar_type() == first.scalar_type(), "headway: ", op_name, " of tensors of ",
                      name_of_type(first.scalar_type()), " and of ", name_of_type(tensor.scalar_type()),
                      ": those of one call must be of one type");
    TORCH_CHECK_VALUE(tensor.layout() == first.layout(), "headway: ", op_name, " of a tensor with layout ",
                      first.layout(), " and one with ", tensor.layout());
  }
}

void expects_sparse_sum(std::string_view op_name, c10d::ReduceOp const& operation, at::Tensor const& tensor) {
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.layout() == at::kSparse, "headway: ", op_name, " cannot reduce tensors with",
                              " layout ", tensor.layout(), ", only strided and sparse COO tensors");
  TORCH_CHECK_VALUE(operation == c10d::ReduceOp::SUM && gloo_adds_sparse(tensor.scalar_type()), "headway: ", op_name,
                    " cannot reduce sparse tensors of ", name_of_type(tensor.scalar_type()), " with ",
                    name_of_operation(operation.op_),
                    ": Gloo, which reduces CPU tensors, has only SUM, of float32, float64,",
                    " bfloat16, complex64, complex128, uint8, int8, int32 and int64");
}

GlooReduction expect_gloo_reduction(std::string_view op_name, c10d::ReduceOp const& operation, at::ScalarType type) {
  auto const found = gloo_reduction(type, operation.op_);
  TORCH_CHECK_VALUE(found, "headway: ", op_name, " cannot reduce tensors of ", name_of_type(type), " with ",
                    name_of_operation(operation.op_),
                    ": Gloo, which reduces CPU tensors, has no such operation; convert them", " to another type first");
  return *found;
}

/// Throws for lazily conjugated or negated tensors: NCCL sees the memory only.
void expects_resolved(std::string_view op_name, std::vector<at::Tensor> const& tensors) {
  for (auto const& tensor : tensors) {
    TORCH_CHECK_VALUE(!tensor.is_conj() && !tensor.is_neg(), "headway: ", op_name, " on ", tensor.device(),
                      " cannot reduce a tensor that is lazily conjugated or negated: pass",
                      " tensor.resolve_conj().resolve_neg()");
  }
}

}  // namespace

ReductionTensors::ReductionTensors(std::string_view op_name, c10d::ReduceOp operation,
                                   std::vector<at::Tensor> const& tensors)
    : operation_(std::move(operation)) {
  expects_one_kind(op_name, tensors);
  auto const& first = tensors[0];
  if (first.is_cpu() && first.layout() != at::kStrided) {
    expects_sparse_sum(op_name, operation_, first);
  } else if (first.is_cpu()) {
    gloo_ = expect_gloo_reduction(op_name, operation_, first.scalar_type());
    if (gloo_->operation != operation_.op_) operation_ = gloo_->operation;
  } else {
    expects_resolved(op_name, tensors);
  }
}

bool ReductionTensors::is_plain(at::Tensor const& tensor) const {
  return tensor.scalar_type() == gloo_->type && !gloo_->flips_sign && tensor.is_contiguous() && !tensor.is_conj() &&
         !tensor.is_neg();
}

at::Tensor ReductionTensors::in_place(at::Tensor const& tensor) {
  if (!gloo_ || is_plain(tensor)) return tensor;
  auto temporary = scratch(tensor);
  copy_back(temporary, tensor);
  return temporary;
}

/// Only for Gloo: an operation on CUDA tensors has no `gloo_`.
at::Tensor ReductionTensors::scratch(at::ArrayRef<at::Tensor> tensors) {
  at::AutoDispatchBelowADInplaceOrView const no_autograd;
  has_temporaries_ = true;
  std::int64_t count = 0;
  for (auto const& tensor : tensors) count += tensor.numel();
  auto all = at::empty({count}, gloo_->type);
  std::int64_t first = 0;
  for (auto const& tensor : tensors) {
    all.narrow(0, first, tensor.numel()).view(tensor.sizes()).copy_(tensor);
    first += tensor.numel();
  }
  return gloo_->flips_sign ? all.bitwise_xor_(kTopBit) : all;
}

void ReductionTensors::copy_back(at::Tensor const& part, at::Tensor const& output) {
  has_temporaries_ = true;
  copies_.push_back({part, output, gloo_ && gloo_->flips_sign});
}

/// @param results outputs of the operation, which its future holds
std::optional<Epilogue> ReductionTensors::epilogue(std::vector<at::Tensor> results) const {
  if (!has_temporaries_) return std::nullopt;
  auto run = [copies = copies_] {
    at::AutoDispatchBelowADInplaceOrView const no_autograd;
    for (auto const& [part, output, flips_sign] : copies) {
      output.copy_((flips_sign ? part.bitwise_xor(kTopBit) : part).view_as(output));
    }
  };
  return Epilogue{std::move(run), std::move(results)};
}

}  // namespace headway::c10d_backend
