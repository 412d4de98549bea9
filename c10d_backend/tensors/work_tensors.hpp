// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "torch_headers.hpp"

#include <headway/comm/group.hpp>

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace headway::c10d_backend {

/// Type code of a tensor's elements in messages.
comm::DataType data_type_of(at::Tensor const& tensor);
/// Name of a type code in Python: "float32".
std::string data_type_name(comm::DataType type) noexcept;

/// Memory of a contiguous tensor.
std::span<std::byte> bytes_of(at::Tensor const& tensor);

/// Tensors of one operation. Keeps them alive, and replaces those that are not plain memory (strided views, lazily
/// conjugated or negated tensors) by contiguous temporaries.
class WorkTensors final {
 public:
  /// Bytes to send.
  /// @throws NotImplementedError unless the tensor is dense memory of a CPU or a CUDA device; ValueError if it is on
  /// another device than earlier ones.
  std::span<std::byte const> source(at::Tensor const& tensor);
  /// Memory to receive into. If `tensor` is not plain memory, write_back() copies the bytes to it.
  std::span<std::byte> destination(at::Tensor const& tensor);
  /// Like source(), as a tensor: `tensor` itself or a contiguous temporary.
  at::Tensor plain_source(at::Tensor const& tensor);
  /// Like destination(), as a tensor.
  at::Tensor plain_destination(at::Tensor const& tensor);

  /// Device of the tensors; none if there are no tensors.
  [[nodiscard]] std::optional<at::Device> device() const { return device_; }
  /// Sets the device of an operation that holds no tensor.
  void set_device(at::Device device) { device_ = device; }

  /// Checks the results of `op_name`. Does nothing if all outputs are plain memory: a BlockMap checks those.
  /// @throws ValueError if two results share memory, or one has several elements at one address.
  void expect_disjoint_results(std::string_view op_name) const;
  /// Copies the temporaries to their tensors; on a CUDA device in the order of the current stream.
  void write_back();
  /// Moves everything except the results to the returned object, which the caller frees without any lock.
  [[nodiscard]] WorkTensors release();
  /// Value of the operation's future.
  [[nodiscard]] c10::IValue value() const;
  /// Storages of all tensors that the operation reads or writes.
  [[nodiscard]] std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> storages() const;

  std::vector<at::Tensor> results;          ///< Returned by Work::result() and the future.
  std::vector<std::size_t> result_lengths;  ///< If not empty, the future's value is a list of lists of these lengths.

 private:
  void expects_movable(at::Tensor const& tensor);

  std::optional<at::Device> device_;
  std::vector<at::Tensor> held_;  ///< Kept alive: inputs or their temporaries, and outputs without a temporary.
  std::vector<std::pair<at::Tensor, at::Tensor>> write_backs_;  ///< Pairs of output and its temporary.
};

}  // namespace headway::c10d_backend
