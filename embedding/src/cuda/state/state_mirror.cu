// SPDX-License-Identifier: Apache-2.0

// Late copies of a table's counters on the host. See state_mirror.hpp.
//
// Counters change on the device, and the host learns of it when a copy arrives. Until then it counts the keys of all
// calls since: these are the unknown keys, any of which may be new. So the host knows an upper bound at any time
// without waiting.

#include "cuda/state/state_mirror.hpp"
#include "headway/base/cuda_check.hpp"

#include <utility>

namespace headway::embedding {

StateMirror::StateMirror() {
  for (auto& copy : copies_) {
    base::check_cuda(cudaMallocHost(&copy.state, sizeof(TableState)), "cudaMallocHost");
    base::check_cuda(cudaEventCreateWithFlags(&copy.is_there, cudaEventDisableTiming), "cudaEventCreate");
  }
}

StateMirror::~StateMirror() {
  for (auto const& copy : copies_) {
    if (copy.is_there != nullptr) static_cast<void>(cudaEventDestroy(copy.is_there));
    if (copy.state != nullptr) static_cast<void>(cudaFreeHost(copy.state));
  }
}

void StateMirror::record(TableState const* state, std::size_t num_keys, cudaStream_t stream) {
  num_keys_after_last_ += num_keys;
  num_unknown_keys_ += num_keys;
  static_cast<void>(known());
  if (num_under_way_ == kNumCopies) return;  // The device is far behind; the next copy will count these keys too.
  auto& copy = copies_[(first_ + num_under_way_) % kNumCopies];
  base::check_cuda(cudaMemcpyAsync(copy.state, state, sizeof(TableState), cudaMemcpyDeviceToHost, stream),
                   "cudaMemcpyAsync");
  base::check_cuda(cudaEventRecord(copy.is_there, stream), "cudaEventRecord");
  // These keys belong to this copy from now on: they are known when it arrives.
  copy.num_keys = std::exchange(num_keys_after_last_, 0);
  ++num_under_way_;
}

TableState const& StateMirror::known() {
  while (num_under_way_ > 0) {
    auto const& copy = copies_[first_];
    cudaError_t const result = cudaEventQuery(copy.is_there);
    // Copies arrive in order, so the rest has not arrived either.
    if (result == cudaErrorNotReady) break;
    base::check_cuda(result, "cudaEventQuery");
    known_ = *copy.state;
    num_unknown_keys_ -= copy.num_keys;
    first_ = (first_ + 1) % kNumCopies;
    --num_under_way_;
  }
  return known_;
}

bool StateMirror::wait_for_one() {
  if (num_under_way_ == 0) return false;
  base::check_cuda(cudaEventSynchronize(copies_[first_].is_there), "cudaEventSynchronize");
  return true;
}

TableState const& StateMirror::wait(TableState const* state, cudaStream_t stream) {
  // Any copy will do: after the first synchronisation none is under way.
  auto const& copy = copies_.front();
  base::check_cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  base::check_cuda(cudaMemcpyAsync(copy.state, state, sizeof(TableState), cudaMemcpyDeviceToHost, stream),
                   "cudaMemcpyAsync");
  base::check_cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  known_ = *copy.state;
  num_under_way_ = num_keys_after_last_ = num_unknown_keys_ = 0;
  return known_;
}

void StateMirror::forget_erased(std::size_t stripe) {
  known_.used[stripe] = known_.live[stripe];
  for (std::size_t i = 0; i < num_under_way_; ++i) num_keys_after_last_ += copies_[(first_ + i) % kNumCopies].num_keys;
  num_under_way_ = 0;
}

}  // namespace headway::embedding
