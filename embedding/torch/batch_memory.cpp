// SPDX-License-Identifier: Apache-2.0

// Memory of a batch: blocks of a ShardedTable as tensors, and tensors as blocks.
//
// Idea: torch's caching allocator hands memory out in the order of a stream. A block that another stream used last must
// not be handed out again before that stream is done. So whoever frees it compares the current stream with the one that
// made it, and tells the allocator (record_stream) if they differ.
//
// Example: a lookup runs on stream A, and its backward pass on stream B. B frees the keys. The allocator gives their
// memory to a later call on A only after B has finished.
//
// Invariant: whoever destroys the last owner of a block does so with the stream current that used it last.
// Complexity: O(1) per block. No operator of PyTorch is called on the CPU.

#include "batch_memory.hpp"

#include "devices.hpp"
#include "tensors.hpp"

#include <ATen/EmptyTensor.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace headway::embedding {

namespace {

/// Frees a block. If another stream than that of the allocation uses it, the allocator keeps it until that one is done.
class StreamOrderedFree {
 public:
  StreamOrderedFree(c10::DataPtr memory, std::size_t num_bytes, c10::Stream made_on)
      : memory_(std::make_shared<c10::DataPtr>(std::move(memory))), num_bytes_(num_bytes), made_on_(made_on) {}

  void operator()(void* /*data*/) const {
    auto const used_on = current_stream(made_on_.device());
    if (used_on == made_on_) return;
    c10::Storage storage(c10::Storage::use_byte_size_t(), num_bytes_, std::move(*memory_));
    auto const tensor = at::detail::make_tensor<at::TensorImpl>(
        std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CUDA), caffe2::TypeMeta::Make<std::uint8_t>());
    tensor.record_stream(used_on);
  }

 private:
  std::shared_ptr<c10::DataPtr> memory_;
  std::size_t num_bytes_;
  c10::Stream made_on_;
};

bool are_adjacent(std::span<at::Tensor const> pieces) {
  auto const* end = static_cast<float const*>(pieces.front().const_data_ptr());
  for (auto const& piece : pieces) {
    if (!piece.defined() || !piece.is_contiguous() || !piece.storage().is_alias_of(pieces.front().storage()) ||
        piece.const_data_ptr() != end) {
      return false;
    }
    end += piece.numel();
  }
  return true;
}

}  // namespace

c10::Stream current_stream(at::Device device) { return c10::impl::VirtualGuardImpl(device.type()).getStream(device); }

std::shared_ptr<BatchDevice> batch_device(at::Device device, std::shared_ptr<base::ThreadPool> thread_pool) {
  if (device.is_cpu()) return make_host_batch_device(std::move(thread_pool));
  // torch's caching allocator, without its dispatcher.
  auto* const allocator = empty({0}, at::kByte, device).storage().allocator();
  auto allocate = [device, allocator](std::size_t num_bytes) {
    c10::DeviceGuard const guard(device);
    auto memory = allocator->allocate(num_bytes);
    void* const data = memory.get();
    return std::shared_ptr<void>(data, StreamOrderedFree(std::move(memory), num_bytes, current_stream(device)));
  };
  return make_cuda_batch_device(place_of(device), std::move(allocate));
}

at::Tensor empty_matrix(std::int64_t rows, std::int64_t columns, at::Device device) {
  if (device.is_cpu()) return at::detail::empty_cpu({rows, columns}, at::TensorOptions(at::kFloat));
  return empty({rows, columns}, at::kFloat, device);
}

at::Tensor rows_of(at::Tensor const& matrix, std::int64_t first, std::int64_t count) {
  auto view = at::detail::make_tensor<at::TensorImpl>(c10::Storage(matrix.storage()), matrix.key_set(), matrix.dtype());
  auto* const impl = view.unsafeGetTensorImpl();
  impl->set_storage_offset(matrix.storage_offset() + first * matrix.size(1));
  impl->set_sizes_contiguous({count, matrix.size(1)});
  return view;
}

at::Tensor join_rows(std::span<at::Tensor const> pieces, std::span<std::int64_t const> num_rows) {
  auto const some = std::ranges::find_if(pieces, &at::Tensor::defined);
  if (some == pieces.end()) return {};
  if (pieces.size() == 1) return some->contiguous();
  if (pieces.front().defined() && are_adjacent(pieces)) {
    auto joined = rows_of(pieces.front(), 0, std::accumulate(num_rows.begin(), num_rows.end(), std::int64_t{0}));
    // Writes to the pieces, which are views of one tensor, count as writes to the whole.
    joined.unsafeGetTensorImpl()->set_version_counter(pieces.front().unsafeGetTensorImpl()->version_counter());
    return joined;
  }
  std::vector<at::Tensor> all;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    all.push_back(pieces[i].defined() ? pieces[i] : at::zeros({num_rows[i], some->size(1)}, some->options()));
  }
  return at::cat(all);
}

bool has_storage_of_its_own(at::Tensor const& tensor) {
  return static_cast<std::size_t>(tensor.numel()) * tensor.element_size() == tensor.storage().nbytes();
}

Block<float const> block_of(at::Tensor const& tensor) {
  std::span const values(static_cast<float const*>(tensor.const_data_ptr()), static_cast<std::size_t>(tensor.numel()));
  if (tensor.is_cpu()) return {values, std::make_shared<at::Tensor>(tensor)};
  auto const release = [made_on = current_stream(tensor.device())](at::Tensor const* kept) {
    auto const used_on = current_stream(kept->device());
    if (used_on != made_on) kept->record_stream(used_on);
    delete kept;
  };
  return {values, std::shared_ptr<at::Tensor const>(new at::Tensor(tensor), release)};
}

at::Tensor borrow(void const* data, at::IntArrayRef shape, at::ScalarType type, at::Device device,
                  std::shared_ptr<void const> owner) {
  return at::from_blob(
      const_cast<void*>(data), shape, [owner = std::move(owner)](void*) {}, at::TensorOptions(type).device(device),
      device);
}

}  // namespace headway::embedding
