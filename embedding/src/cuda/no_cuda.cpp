// SPDX-License-Identifier: Apache-2.0

// Stubs of the CUDA functions for builds without CUDA. They throw.

#include "headway/base/status.hpp"
#include "headway/embedding/batch_device.hpp"
#include "headway/embedding/cuda_deduplicator.hpp"
#include "headway/embedding/cuda_table.hpp"
#include "headway/embedding/features.hpp"

namespace headway::embedding {

namespace {

[[noreturn]] void refuse() {
  throw base::UsageError("this build of Headway has no tables on CUDA devices: nvcc was not found when it was built");
}

}  // namespace

std::unique_ptr<Table> make_cuda_table(TableOptions const& /*options*/, CudaPlace const& /*place*/) { refuse(); }

std::unique_ptr<CudaDeduplicator> make_cuda_deduplicator(CudaPlace const& /*place*/) { refuse(); }

std::shared_ptr<BatchDevice> make_cuda_batch_device(CudaPlace const& /*place*/, CudaAllocate /*allocate*/) { refuse(); }

void join_features(std::span<Feature const> /*features*/, JoinedFeatures const& /*out*/, CudaPlace const& /*place*/) {
  refuse();
}

}  // namespace headway::embedding
