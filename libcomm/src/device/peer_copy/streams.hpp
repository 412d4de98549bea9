// SPDX-License-Identifier: Apache-2.0

// Streams, events, and batches of driver calls for exchanges on a device.
//
// The host spends most of its time for an exchange in driver calls. So events are taken from a pool, and copies and
// memory words are collected and enqueued together where the driver allows it.
//
// A memory word is the means by which streams of two processes wait for each other. CUDA events cannot do that
// without a common handle per event; a word needs only memory that both can address (cuStreamBatchMemOp, operations
// CU_STREAM_MEM_OP_WAIT_VALUE_64 and WRITE_VALUE_64).

#pragma once

#include "device/peer_copy/context.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

namespace headway::comm::peer_copy {

/// Device address of `memory`.
inline CUdeviceptr address_of(std::span<std::byte const> memory) {
  return reinterpret_cast<CUdeviceptr>(memory.data());
}

/// A stream of this library. The legacy default stream does not synchronise with it.
class Stream {
 public:
  explicit Stream(std::shared_ptr<Context const> context);
  Stream(Stream const&) = delete;
  Stream& operator=(Stream const&) = delete;
  ~Stream();
  [[nodiscard]] CUstream get() const { return stream_; }
  /// True if all work enqueued on it is done.
  [[nodiscard]] bool is_idle() const noexcept;

 private:
  std::shared_ptr<Context const> context_;
  CUstream stream_{};
};

/// Pool of reusable events: creating one costs more than an exchange of a few bytes.
class EventPool : public std::enable_shared_from_this<EventPool> {
 public:
  explicit EventPool(std::shared_ptr<Context const> context) : context_(std::move(context)) {}
  ~EventPool();
  /// An event recorded on `stream`. The context must be current. The event returns to the pool with its last owner.
  [[nodiscard]] std::shared_ptr<CUevent_st> record(CUstream stream);

 private:
  void give_back(CUevent event) noexcept;

  std::shared_ptr<Context const> context_;
  std::mutex mutex_;
  std::vector<CUevent> free_;
};

/// Collects word waits and writes, and enqueues them with one driver call per kMost words.
class WordBatch {
 public:
  explicit WordBatch(Context const& context) : context_(context) {}
  /// Adds a wait until `word` is at least `value`, compared cyclically.
  void wait(CUdeviceptr word, std::uint64_t value);
  /// Adds a write of `value`, visible to all after the stream's earlier work.
  void write(CUdeviceptr word, std::uint64_t value);
  /// Enqueues the collected operations in order and empties the batch.
  void enqueue(CUstream stream);
  [[nodiscard]] bool empty() const { return words_.empty(); }
  /// Drops the operations that were not enqueued.
  void clear() { words_.clear(); }

 private:
  static constexpr std::size_t kMost = 256;  ///< Most operations that the driver takes in one call.

  Context const& context_;
  std::vector<CUstreamBatchMemOpParams> words_;
};

/// Collects copies, which may run in any order, and enqueues them in one driver call if the driver supports that. Not
/// for the legacy default stream.
class CopyBatch {
 public:
  explicit CopyBatch(Context const& context) : context_(context) {}
  void add(CUdeviceptr destination, CUdeviceptr source, std::size_t num_bytes);
  void enqueue(CUstream stream);
  /// Drops the copies that were not enqueued.
  void clear();

 private:
  Context const& context_;
  std::vector<CUdeviceptr> destinations_, sources_;
  std::vector<std::size_t> sizes_;
};

}  // namespace headway::comm::peer_copy
