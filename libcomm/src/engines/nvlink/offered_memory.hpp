#pragma once

#include "engines/nvlink/introductions.hpp"
#include "engines/nvlink/layout.hpp"
#include "engines/nvlink/shared_memory.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace headway::comm::nvlink {

/// The memory of allocate_device_memory() that a rank and its peers on the host offer each other, and open once each.
/// For one thread at a time, where nothing else is said.
class OfferedMemory {
 public:
  /// Of the ranks that meet in `set`; a peer must be met before anything is offered to it.
  OfferedMemory(std::shared_ptr<Context const> context, Introductions& introductions, int set)
      : context_(std::move(context)), introductions_(introductions), set_(set) {}

  /// Where `peer` finds `memory` of this rank, which is offered to it first. No segment: it is other memory, or the
  /// peer cannot be told of it now.
  [[nodiscard]] MemoryPlace offer(int peer, std::span<std::byte const> memory);
  /// Whether peers may have been given anything. Thread-safe.
  [[nodiscard]] bool has_offered() const { return has_offered_; }
  /// The address of a place of `peer` here; maps its segment first, if need be. @throws SystemError.
  [[nodiscard]] CUdeviceptr address_of(int peer, MemoryPlace const& place);

  [[nodiscard]] std::uint64_t mapped_bytes() const;

  /// Says to `tell` which peer is to hear what of segments that were freed since the last time, and lets go of those
  /// that peers have freed. Cheap where there is nothing.
  void take_news(std::function<void(int peer, std::string text)> const& tell);
  /// What take_news() said at `peer`. Thread-safe; calls no driver. @throws UsageError if it is none.
  void heard(int peer, std::string_view text);
  [[nodiscard]] static bool is_for_us(std::string_view text) { return text.size() == sizeof(std::uint64_t); }

 private:
  struct Mapped {
    FileDescriptor descriptor{};  ///< Until it is mapped.
    DeviceSegment memory{};
  };

  /// The segment of a peer, whose letter is taken first.
  [[nodiscard]] Mapped& segment_of(int peer, std::uint64_t segment);

  std::shared_ptr<Context const> context_;
  Introductions& introductions_;
  int const set_;
  std::map<int, std::vector<std::weak_ptr<SharedSegment const>>> offered_;  ///< By peer, in order; null: it knows.
  std::map<int, std::vector<Mapped>> mapped_;                               ///< By peer, in its order.
  std::uint64_t num_freed_ = 0;
  std::atomic<bool> has_offered_ = false;

  std::mutex freed_mutex_;  ///< Guards what follows.
  std::vector<std::pair<int, std::uint64_t>> freed_;
};

}  // namespace headway::comm::nvlink
