// SPDX-License-Identifier: Apache-2.0

// Streams, pooled events, and batches of driver calls; streams.hpp explains them.

#include "device/peer_copy/streams.hpp"

#include <algorithm>

namespace headway::comm::peer_copy {

Stream::Stream(std::shared_ptr<Context const> context) : context_(std::move(context)) {
  ContextScope const scope(*context_);
  context_->check(context_->call().stream_create(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
}

Stream::~Stream() {
  QuietContextScope const scope(*context_);
  context_->call().stream_destroy(stream_);
}

bool Stream::is_idle() const noexcept {
  QuietContextScope const scope(*context_);
  return context_->call().stream_query(stream_) != CUDA_ERROR_NOT_READY;
}

EventPool::~EventPool() {
  QuietContextScope const scope(*context_);
  for (CUevent const event : free_) context_->call().event_destroy(event);
}

std::shared_ptr<CUevent_st> EventPool::record(CUstream stream) {
  CUevent event{};
  {
    std::lock_guard const lock(mutex_);
    if (!free_.empty()) {
      event = free_.back();
      free_.pop_back();
    }
  }
  if (event == nullptr) {
    context_->check(context_->call().event_create(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  }
  // The deleter holds the pool, so an event that outlives the device group still has a place to return to.
  std::shared_ptr<CUevent_st> owned(event, [pool = shared_from_this()](CUevent each) { pool->give_back(each); });
  context_->check(context_->call().event_record(event, stream), "cuEventRecord");
  return owned;
}

void EventPool::give_back(CUevent event) noexcept {
  std::lock_guard const lock(mutex_);
  free_.push_back(event);
}

void WordBatch::wait(CUdeviceptr word, std::uint64_t value) {
  CUstreamBatchMemOpParams each{};
  each.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64;
  each.waitValue.address = word;
  each.waitValue.value64 = value;
  each.waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
  words_.push_back(each);
}

void WordBatch::write(CUdeviceptr word, std::uint64_t value) {
  CUstreamBatchMemOpParams each{};
  each.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
  each.writeValue.address = word;
  each.writeValue.value64 = value;
  words_.push_back(each);
}

void WordBatch::enqueue(CUstream stream) {
  for (std::size_t first = 0; first < words_.size(); first += kMost) {
    auto const count = static_cast<unsigned>(std::min(kMost, words_.size() - first));
    context_.check(context_.call().stream_batch_mem_op(stream, count, words_.data() + first, 0), "cuStreamBatchMemOp");
  }
  words_.clear();
}

void CopyBatch::add(CUdeviceptr destination, CUdeviceptr source, std::size_t num_bytes) {
  if (num_bytes == 0) return;
  destinations_.push_back(destination);
  sources_.push_back(source);
  sizes_.push_back(num_bytes);
}

void CopyBatch::enqueue(CUstream stream) {
  auto const& call = context_.call();
#if CUDA_VERSION >= 13000
  if (sizes_.size() > 1 && call.memcpy_batch_async != nullptr) {
    CUmemcpyAttributes attributes{};
    // The sources are read in stream order, as with separate copies.
    attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    std::size_t first = 0;
    context_.check(call.memcpy_batch_async(destinations_.data(), sources_.data(), sizes_.data(), sizes_.size(),
                                           &attributes, &first, 1, stream),
                   "cuMemcpyBatchAsync");
    clear();
  }
#endif
  for (std::size_t i = 0; i < sizes_.size(); ++i) {
    context_.check(call.memcpy_async(destinations_[i], sources_[i], sizes_[i], stream), "cuMemcpyAsync");
  }
  clear();
}

void CopyBatch::clear() {
  destinations_.clear();
  sources_.clear();
  sizes_.clear();
}

}  // namespace headway::comm::peer_copy
