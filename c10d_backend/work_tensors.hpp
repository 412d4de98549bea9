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

/// Type code of a tensor's elements, as messages carry it.
comm::DataType data_type_of(at::Tensor const& tensor);
/// Name of a type code, as in Python: "float32".
std::string data_type_name(comm::DataType type) noexcept;

/// Memory of a contiguous tensor.
std::span<std::byte> bytes_of(at::Tensor const& tensor);

/// The tensors of one operation: keeps them alive, and stands contiguous temporaries in for those that are not plain
/// memory (strided views, lazily conjugated or negated tensors).
class WorkTensors final {
 public:
  /// Bytes to send. @throws NotImplementedError for tensors that are not dense memory of a CPU or a CUDA device;
  /// ValueError for one on another device than those before.
  std::span<std::byte const> source(at::Tensor const& tensor);
  /// Memory to receive into; reaches `tensor` at write_back() if that is not plain memory.
  std::span<std::byte> destination(at::Tensor const& tensor);
  /// Contiguous stand-in for `tensor`, or itself; its bytes may be cut at will.
  at::Tensor plain_source(at::Tensor const& tensor);
  at::Tensor plain_destination(at::Tensor const& tensor);

  /// Where the tensors are; none: there are none.
  [[nodiscard]] std::optional<at::Device> device() const { return device_; }
  /// For an operation that has none to hold.
  void set_device(at::Device device) { device_ = device; }

  /// For operations of `verb` that write to `results`; outputs that are all plain memory are left to a BlockMap.
  /// @throws ValueError if two results share memory, or one of them has several elements in one place.
  void expect_disjoint_results(std::string_view verb) const;
  /// Copies the temporaries to the tensors they stand for, on a CUDA device in the order of the current stream.
  void write_back();
  /// Drops all but the results: gives them to the caller, who frees them without any lock.
  [[nodiscard]] WorkTensors release();
  /// What the future of the operation gives.
  [[nodiscard]] c10::IValue value() const;
  /// Of all tensors that the operation reads or writes.
  [[nodiscard]] std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> storages() const;

  std::vector<at::Tensor> results;          ///< What Work::result() and the future give.
  std::vector<std::size_t> result_lengths;  ///< Not empty: the future gives a list of lists of these lengths.

 private:
  void expects_movable(at::Tensor const& tensor);

  std::optional<at::Device> device_;
  std::vector<at::Tensor> held_;
  std::vector<std::pair<at::Tensor, at::Tensor>> write_backs_;  ///< Output and its temporary.
};

}  // namespace headway::c10d_backend
