// SPDX-License-Identifier: Apache-2.0

// Runs one operation of the compared tables and checks a sample of its results. A known id must have its initial
// embedding. A new id must have it too if the operation or the table writes it, and must not otherwise.
// find_addresses() must find exactly the known ids.

#include "cuda_operation.hpp"

#include "cuda_systems.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

namespace headway::benchmarks {

namespace {

/// Fill byte of `out`. Four of them make a float that no checked embedding contains.
constexpr int kUntouchedByte = 0x40;
/// Most embeddings of a batch that a check compares.
constexpr std::size_t kMostChecked = 10'000;
/// Share of a batch that a system with eviction may have lost.
constexpr double kMostEvicted = 0.05;

}  // namespace

std::string_view name_of(CudaOperation operation) {
  switch (operation) {
    case CudaOperation::kFind:
      return "find";
    case CudaOperation::kFindAddresses:
      return "find_addresses";
    case CudaOperation::kInsertOrAssign:
      return "insert_or_assign";
    case CudaOperation::kFindOrInsert:
      return "find_or_insert";
  }
  throw std::logic_error("no such operation");
}

bool inserts(CudaOperation operation) {
  return operation == CudaOperation::kInsertOrAssign || operation == CudaOperation::kFindOrInsert;
}

bool moves_embeddings(CudaOperation operation) { return operation != CudaOperation::kFindAddresses; }

CudaOperationRunner::CudaOperationRunner(CudaOperation operation, std::size_t batch, std::size_t dim,
                                         std::uint64_t seed)
    : operation_(operation), batch_(batch), dim_(dim), seed_(seed), out_(batch * dim) {}

void CudaOperationRunner::prepare() const {
  base::check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  base::check_cuda(cudaMemset(out_.data(), kUntouchedByte, batch_ * dim_ * sizeof(float)), "cudaMemset");
  base::check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

void CudaOperationRunner::run(CudaTableSystem& system, std::span<std::uint64_t const> ids,
                              std::span<float const> embeddings) const {
  switch (operation_) {
    case CudaOperation::kFind:
      return system.find(ids, out_.first(ids.size() * dim_));
    case CudaOperation::kFindAddresses:
      return system.find_addresses(ids);
    case CudaOperation::kInsertOrAssign:
      return system.insert_or_assign(ids, embeddings);
    case CudaOperation::kFindOrInsert:
      return system.find_or_insert(ids, out_.first(ids.size() * dim_));
  }
}

void CudaOperationRunner::check(NamedCudaSystem& system, IdBatch const& batch) const {
  if (operation_ == CudaOperation::kInsertOrAssign) {
    prepare();
    system.system->find(batch.device_ids, out_.first(batch.ids.size() * dim_));
  }
  auto const num_wrong = operation_ == CudaOperation::kFindAddresses ? count_wrong_addresses(*system.system, batch)
                                                                     : count_wrong_embeddings(*system.system, batch);
  auto const num_allowed = system.system->evicts() ? kMostEvicted * static_cast<double>(batch.ids.size()) : 0;
  if (static_cast<double>(num_wrong) <= num_allowed) return;
  throw std::runtime_error(system.name + ": " + std::string(name_of(operation_)) + " was wrong for " +
                           std::to_string(num_wrong) + " ids");
}

std::size_t CudaOperationRunner::count_wrong_addresses(CudaTableSystem const& system, IdBatch const& batch) const {
  auto const found = system.found(batch.ids.size());
  std::size_t num_wrong = 0;
  for (std::size_t i = 0; i < found.size(); ++i) num_wrong += (found[i] != 0) == (batch.is_new[i] != 0) ? 1 : 0;
  return num_wrong;
}

std::size_t CudaOperationRunner::count_wrong_embeddings(CudaTableSystem const& system, IdBatch const& batch) const {
  std::size_t const stride = batch.ids.size() / kMostChecked + 1;
  std::size_t const num_checked = (batch.ids.size() + stride - 1) / stride;
  std::size_t const row_bytes = dim_ * sizeof(float);
  std::vector<float> out(num_checked * dim_), expected(dim_);
  base::check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  base::check_cuda(cudaMemcpy2D(out.data(), row_bytes, out_.data(), stride * row_bytes, row_bytes, num_checked,
                                cudaMemcpyDeviceToHost),
                   "cudaMemcpy2D");
  bool const are_all_initial = operation_ == CudaOperation::kInsertOrAssign || system.gives_initial_embeddings();
  std::size_t num_wrong = 0;
  for (std::size_t i = 0; i < num_checked; ++i) {
    std::size_t const at = i * stride;
    initial_embeddings(seed_).fill({.id = batch.ids[at]}, expected);
    bool const is_initial = std::ranges::equal(std::span(out).subspan(i * dim_, dim_), expected);
    // A checked id stands for `stride` ids of the batch.
    num_wrong += is_initial == (are_all_initial || batch.is_new[at] == 0) ? 0 : stride;
  }
  return num_wrong;
}

}  // namespace headway::benchmarks
