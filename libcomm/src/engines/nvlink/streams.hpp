#pragma once

#include "engines/nvlink/context.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

namespace headway::comm::nvlink {

/// Where device memory begins, as the driver has it.
inline CUdeviceptr address_of(std::span<std::byte const> memory) {
  return reinterpret_cast<CUdeviceptr>(memory.data());
}

/// A stream of our own, which the legacy default stream does not wait for.
class Stream {
 public:
  explicit Stream(std::shared_ptr<Context const> context);
  Stream(Stream const&) = delete;
  Stream& operator=(Stream const&) = delete;
  ~Stream();
  [[nodiscard]] CUstream get() const { return stream_; }
  /// Whether all that was enqueued is done.
  [[nodiscard]] bool is_idle() const noexcept;

 private:
  std::shared_ptr<Context const> context_;
  CUstream stream_{};
};

/// Events that are used again: making one costs more than an exchange of a few bytes.
class EventPool : public std::enable_shared_from_this<EventPool> {
 public:
  explicit EventPool(std::shared_ptr<Context const> context) : context_(std::move(context)) {}
  ~EventPool();
  /// An event, recorded on `stream`; the context must be current. It goes back with its last owner.
  [[nodiscard]] std::shared_ptr<CUevent_st> record(CUstream stream);

 private:
  void give_back(CUevent event) noexcept;

  std::shared_ptr<Context const> context_;
  std::mutex mutex_;
  std::vector<CUevent> free_;
};

/// Words to wait for and to write, in one call of the driver.
class WordBatch {
 public:
  explicit WordBatch(Context const& context) : context_(context) {}
  /// Until the word is at least `value`, as a cyclic count.
  void wait(CUdeviceptr word, std::uint64_t value);
  /// After all that the stream did before, for everybody to see.
  void write(CUdeviceptr word, std::uint64_t value);
  void enqueue(CUstream stream);
  [[nodiscard]] bool empty() const { return words_.empty(); }
  /// Drops what was not enqueued.
  void clear() { words_.clear(); }

 private:
  static constexpr std::size_t kMost = 256;  ///< What the driver takes at once.

  Context const& context_;
  std::vector<CUstreamBatchMemOpParams> words_;
};

/// Copies in any order, in one call of the driver if it has one for that; not for the legacy default stream.
class CopyBatch {
 public:
  explicit CopyBatch(Context const& context) : context_(context) {}
  void add(CUdeviceptr destination, CUdeviceptr source, std::size_t num_bytes);
  void enqueue(CUstream stream);
  /// Drops what was not enqueued.
  void clear();

 private:
  Context const& context_;
  std::vector<CUdeviceptr> destinations_, sources_;
  std::vector<std::size_t> sizes_;
};

}  // namespace headway::comm::nvlink
