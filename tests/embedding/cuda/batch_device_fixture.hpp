// SPDX-License-Identifier: Apache-2.0

// Fixture of the tests of a CUDA device's BatchDevice (memory and kernels for the batches of a ShardedTable).

#pragma once

#include "deduplicator_fixture.hpp"
#include "headway/embedding/batch_device.hpp"

#include <cstddef>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

namespace headway::embedding {

/// Contents of device memory, after all enqueued work.
template <class T>
std::vector<T> download(std::span<T> values) {
  std::vector<std::remove_const_t<T>> on_host(values.size());
  base::check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  if (!values.empty()) {
    base::check_cuda(cudaMemcpy(on_host.data(), values.data(), values.size_bytes(), cudaMemcpyDeviceToHost),
                     "cudaMemcpy");
  }
  return on_host;
}

template <class T>
std::vector<T> download(Block<T> const& block) {
  return download(block.span);
}

/// Adds a BatchDevice on device 0 and the fixture's stream to the deduplicators of the base.
class CudaBatchDeviceTest : public CudaDeduplicatorTest {
 protected:
  void SetUp() override {
    CudaDeduplicatorTest::SetUp();
    if (!IsSkipped()) device_ = make_cuda_batch_device(place());
  }
  void TearDown() override {
    device_.reset();
    CudaDeduplicatorTest::TearDown();
  }

  template <class T>
  std::vector<T> random_numbers(std::size_t size) {
    std::vector<T> numbers(size);
    for (auto& number : numbers) number = static_cast<T>(random_());
    return numbers;
  }

  std::shared_ptr<BatchDevice> device_;
};

}  // namespace headway::embedding
