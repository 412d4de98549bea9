// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/base/thread_pool.hpp"
#include "headway/embedding/batch_device.hpp"
#include "torch_headers.hpp"

#include <cstdint>
#include <memory>
#include <span>

namespace headway::embedding {

[[nodiscard]] c10::Stream current_stream(at::Device device);

/// A device whose blocks come from torch's allocators.
[[nodiscard]] std::shared_ptr<BatchDevice> batch_device(at::Device device,
                                                        std::shared_ptr<base::ThreadPool> thread_pool);

/// An uninitialised float32 matrix. On the CPU it does not go through torch's dispatcher.
[[nodiscard]] at::Tensor empty_matrix(std::int64_t rows, std::int64_t columns, at::Device device);

/// Rows of a matrix, as a tensor that shares its storage. It does not go through torch's dispatcher.
[[nodiscard]] at::Tensor rows_of(at::Tensor const& matrix, std::int64_t first, std::int64_t count);

/// Joins the gradients of the features of a merged table. Nothing is copied if they are adjacent in memory.
/// @param pieces (rows, dim) each, or undefined: zeros @param num_rows of each piece
/// @returns (all rows, dim) or undefined if all pieces are
[[nodiscard]] at::Tensor join_rows(std::span<at::Tensor const> pieces, std::span<std::int64_t const> num_rows);

/// Does the tensor have all bytes of its storage? If not, it is a view of a larger one, such as a reused buffer.
[[nodiscard]] bool has_storage_of_its_own(at::Tensor const& tensor);

/// A block that keeps a float32 tensor alive. If another stream uses it last, the allocator waits for that one.
[[nodiscard]] Block<float const> block_of(at::Tensor const& tensor);

/// A tensor on memory that `owner` keeps alive. Nobody may write to it if `data` is constant elsewhere.
[[nodiscard]] at::Tensor borrow(void const* data, at::IntArrayRef shape, at::ScalarType type, at::Device device,
                                std::shared_ptr<void const> owner = nullptr);

}  // namespace headway::embedding
