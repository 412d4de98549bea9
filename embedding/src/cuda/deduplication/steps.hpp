// SPDX-License-Identifier: Apache-2.0

// The steps of deduplication on the GPU. Each function has a file of its own; cuda_deduplicator.cu explains them.
#pragma once

#include "cuda/batch/batch_view.cuh"
#include "headway/embedding/cuda_deduplicator.hpp"
#include "headway/embedding/deduplicator.hpp"
#include "headway/embedding/table.hpp"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace headway::embedding {

/// Finds the unique keys of a batch of at least one key, and numbers them in order of first occurrence: sets ids,
/// tables, inverse_indices and size of `unique`. Keys beyond Keys::num_known get the index keys.size() - 1.
/// @param in_order (keys) Output: 0, 1 and so on, which build_csr_async() takes
void find_unique_keys_async(Keys const& keys, CudaUniqueKeys const& unique, std::uint32_t* in_order,
                            cudaStream_t stream);

/// Arguments of build_csr_async(). An item has one segment. The segment of an item beyond num_items() is not less
/// than that of any item before, so that these sort last.
struct BuildCsrArgs {
  std::uint32_t const* segments;  ///< (items) Segment of each item.
  std::uint32_t last_segment;     ///< Greatest possible segment; its bits bound the radix sort.
  std::uint32_t const* in_order;  ///< (items) 0, 1, 2, ..., written by the kernel that makes `segments`.
  DeviceCount num_items;
  DeviceCount num_segments;
  std::uint32_t* csr_indices;  ///< (items) Output: items by segment, ascending within each.
  std::uint32_t*
      csr_offsets;  ///< (segments + 1) Output: offset of each segment in `csr_indices`; segments may be empty.
};

/// Builds the CSR map from segments to items: a stable radix sort, then the boundaries of the segments.
void build_csr_async(BuildCsrArgs const& args, cudaStream_t stream);

/// Sets unique.counts to the sum of the lookups (Keys::counts) of each key's members, its batch positions, saturated at
/// 2^32 - 1. Needs csr_indices and csr_offsets.
void count_unique_keys_async(Keys const& keys, CudaUniqueKeys const& unique, cudaStream_t stream);

/// Permutes unique keys and their CSR map on the device, like reorder() on the host.
/// @param order (unique keys or more) the index in `unique` of each new key; a permutation, not checked
void reorder_unique_keys_async(CudaUniqueKeys const& unique, std::span<std::uint32_t const> order,
                               CudaUniqueKeys const& reordered, cudaStream_t stream);

/// Sorts batch positions by the rank that owns their key, like route() on the host. Keys beyond Keys::num_known come
/// last in `order`, and are not counted.
/// @param order (keys) Output: batch positions, by owner
/// @param counts (ranks) Output: keys of each owner; between 1 and kNumVirtualBuckets ranks
void route_keys_async(Keys const& keys, std::span<std::uint32_t> order, std::span<std::int64_t> counts,
                      cudaStream_t stream);

/// out[bag] = sum of weight * values[inverse_indices[key]] over the keys of the bag, in batch order.
/// @param values (unique keys, dim)
/// @param out (bags, dim)
void sum_bags_async(CudaUniqueKeys const& unique, Bags const& bags, std::size_t dim, float const* values, float* out,
                    cudaStream_t stream);

}  // namespace headway::embedding
