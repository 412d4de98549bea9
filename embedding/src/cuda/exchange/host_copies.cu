// SPDX-License-Identifier: Apache-2.0

// Copies of a few numbers to the host, such as the number of keys for each rank, while the device goes on.
//
// Idea: each copy has a slot: pinned memory, and a stream of its own. The slot's stream waits for an event that is
// recorded on the caller's stream, and for other work if the caller says so; then it copies. The host waits for the
// slot's stream only. Pinned memory is slow to allocate, so a slot returns to a free list when its copy is released.
//
// Example: the caller enqueues A, fetches, and enqueues B. The copy starts after A and runs beside B, and wait()
// returns although B may run for long.
//
// Invariants: a slot is in the free list or belongs to one copy, and its stream is idle before it is free again.
//   A copy keeps its source until it is done. After that the source may be freed on any stream.
//   No two copies share a stream, so none waits behind one whose caller's stream is late.
// Complexity: 3 CUDA calls to start a copy, no allocation once there are enough slots of each size.

#include "cuda/exchange/host_copies.hpp"
#include "headway/base/cuda_check.hpp"

#include <algorithm>
#include <bit>
#include <utility>

namespace headway::embedding {

class HostCopies::Copy final : public HostCopy {
 public:
  Copy(std::shared_ptr<Slots> slots, std::unique_ptr<Slot> slot, Block<std::int64_t> source)
      : slots_(std::move(slots)), slot_(std::move(slot)), source_(std::move(source)), size_(source_.size()) {}
  Copy(Copy const&) = delete;
  Copy& operator=(Copy const&) = delete;
  ~Copy() override {
    // The source and the slot must not be used by others before the copy is done. An error will show elsewhere.
    if (!is_done_) static_cast<void>(slot_->wait());
    slots_->give_back(std::move(slot_));
  }

  void start(cudaStream_t stream, std::function<void(CudaStream)> const& wait) {
    cudaStream_t const own_stream = slot_->wait_for(stream);
    if (wait) wait(own_stream);
    if (size_ > 0) slot_->copy_async(source_.span);
  }
  [[nodiscard]] std::span<std::int64_t const> wait() override {
    if (!is_done_) {
      base::check_cuda(slot_->wait(), "cudaStreamSynchronize");
      is_done_ = true;
      source_ = {};
    }
    return {slot_->numbers(), size_};
  }

 private:
  std::shared_ptr<Slots> slots_;
  std::unique_ptr<Slot> slot_;
  Block<std::int64_t> source_;
  std::size_t size_;
  bool is_done_ = false;
};

HostCopies::Slot::Slot(std::size_t capacity) : Slot() {
  // From here on the destructor runs if a call fails, because the delegated constructor is complete.
  base::check_cuda(cudaMallocHost(&memory_, capacity * sizeof(std::int64_t)), "cudaMallocHost");
  capacity_ = capacity;
  base::check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  base::check_cuda(cudaEventCreateWithFlags(&is_written_, cudaEventDisableTiming), "cudaEventCreate");
}

HostCopies::Slot::~Slot() {
  if (is_written_ != nullptr) static_cast<void>(cudaEventDestroy(is_written_));
  if (stream_ != nullptr) static_cast<void>(cudaStreamDestroy(stream_));
  if (memory_ != nullptr) static_cast<void>(cudaFreeHost(memory_));
}

cudaStream_t HostCopies::Slot::wait_for(cudaStream_t stream) {
  base::check_cuda(cudaEventRecord(is_written_, stream), "cudaEventRecord");
  base::check_cuda(cudaStreamWaitEvent(stream_, is_written_), "cudaStreamWaitEvent");
  return stream_;
}

void HostCopies::Slot::copy_async(std::span<std::int64_t const> source) {
  base::check_cuda(cudaMemcpyAsync(memory_, source.data(), source.size_bytes(), cudaMemcpyDeviceToHost, stream_),
                   "cudaMemcpyAsync");
}

std::unique_ptr<HostCopies::Slot> HostCopies::Slots::take(std::size_t size) {
  constexpr std::size_t kLeastCapacity = 512;  // A page of 4 KiB.
  std::lock_guard const lock(mutex_);
  auto const found = std::ranges::find_if(free_, [size](auto const& slot) { return slot->capacity() >= size; });
  if (found != free_.end()) {
    auto slot = std::move(*found);
    free_.erase(found);
    return slot;
  }
  auto slot = std::make_unique<Slot>(std::bit_ceil(std::max(size, kLeastCapacity)));
  free_.reserve(num_slots_ + 1);  // So give_back() never allocates.
  ++num_slots_;
  return slot;
}

void HostCopies::Slots::give_back(std::unique_ptr<Slot> slot) noexcept {
  std::lock_guard const lock(mutex_);
  free_.push_back(std::move(slot));
}

std::unique_ptr<HostCopy> HostCopies::start(Block<std::int64_t> source, cudaStream_t stream,
                                            std::function<void(CudaStream)> const& wait) {
  base::DeviceScope const scope(slots_->device());
  auto slot = slots_->take(source.size());
  auto copy = std::make_unique<Copy>(slots_, std::move(slot), std::move(source));
  copy->start(stream, wait);
  return copy;
}

}  // namespace headway::embedding
