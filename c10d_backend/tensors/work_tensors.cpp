// SPDX-License-Identifier: Apache-2.0

// Tensors of one operation, as plain bytes.
//
// A block of libcomm is a range of memory, so a tensor takes part directly only if its elements lie there in order
// and as they are: contiguous, dense, and not lazily conjugated or negated. Any other tensor gets a contiguous
// temporary. An input is copied to it before the operation starts, an output from it when the operation is done.
//
// Example: broadcast to x[:, 0] of a (4, 3) tensor. The column has 4 elements 12 bytes apart, so they are received
// into a temporary of 16 bytes, and write_back() copies these into the column.

#include "tensors/work_tensors.hpp"

#include "tensors/memory_overlap.hpp"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/ScalarType.h>

namespace headway::c10d_backend {

namespace {

bool is_plain(at::Tensor const& tensor) { return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg(); }

}  // namespace

std::span<std::byte> bytes_of(at::Tensor const& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

comm::DataType data_type_of(at::Tensor const& tensor) { return static_cast<comm::DataType>(tensor.scalar_type()); }

std::string data_type_name(comm::DataType type) noexcept {
  try {
    return std::string(c10::getDtypeNames(static_cast<at::ScalarType>(type)).first);
  } catch (std::exception const&) {  // A message of a peer may carry any code.
    return "type " + std::to_string(type);
  }
}

void WorkTensors::expects_movable(at::Tensor const& tensor) {
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.layout() == at::kStrided, "headway moves dense tensors only, and this one is ",
                              tensor.layout(), ": all_reduce is the only collective for sparse tensors");
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.device().is_cpu() || tensor.device().is_cuda(),
                              "headway does not move tensors on ", tensor.device(),
                              ", only those on CPUs and CUDA devices");
  TORCH_CHECK_VALUE(!device_ || *device_ == tensor.device(), "headway: the tensors of one call are on ", *device_,
                    " and on ", tensor.device());
  device_ = tensor.device();
}

at::Tensor WorkTensors::plain_source(at::Tensor const& tensor) {
  expects_movable(tensor);
  if (is_plain(tensor)) {
    held_.push_back(tensor);
    return tensor;
  }
  // Autograd must see neither the copies nor in-place writes: collectives are not differentiable here.
  at::AutoDispatchBelowADInplaceOrView const no_autograd;
  held_.push_back(tensor.resolve_conj().resolve_neg().contiguous());
  return held_.back();
}

at::Tensor WorkTensors::plain_destination(at::Tensor const& tensor) {
  expects_movable(tensor);
  if (is_plain(tensor)) {
    held_.push_back(tensor);
    return tensor;
  }
  at::AutoDispatchBelowADInplaceOrView const no_autograd;
  write_backs_.emplace_back(tensor,
                            at::empty(tensor.sizes(), tensor.options().memory_format(at::MemoryFormat::Contiguous)));
  return write_backs_.back().second;
}

std::span<std::byte const> WorkTensors::source(at::Tensor const& tensor) { return bytes_of(plain_source(tensor)); }

std::span<std::byte> WorkTensors::destination(at::Tensor const& tensor) { return bytes_of(plain_destination(tensor)); }

void WorkTensors::expect_disjoint_results(std::string_view op_name) const {
  if (!write_backs_.empty()) expects_disjoint_outputs(op_name, results);
}

void WorkTensors::write_back() {
  if (write_backs_.empty()) return;
  at::AutoDispatchBelowADInplaceOrView const no_autograd;
  for (auto& [tensor, temporary] : write_backs_) tensor.copy_(temporary);
}

WorkTensors WorkTensors::release() {
  WorkTensors released;
  released.held_ = std::exchange(held_, {});
  released.write_backs_ = std::exchange(write_backs_, {});
  return released;
}

c10::IValue WorkTensors::value() const {
  if (result_lengths.empty()) return results;
  std::vector<std::vector<at::Tensor>> lists;
  auto next = results.begin();
  for (auto const length : result_lengths) {
    lists.emplace_back(next, next + static_cast<std::ptrdiff_t>(length));
    next += static_cast<std::ptrdiff_t>(length);
  }
  return lists;
}

std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> WorkTensors::storages() const {
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> all;
  for (auto const& tensor : held_) all.push_back(tensor.storage().getWeakStorageImpl());
  for (auto const& tensor : results) all.push_back(tensor.storage().getWeakStorageImpl());
  return all;
}

}  // namespace headway::c10d_backend
