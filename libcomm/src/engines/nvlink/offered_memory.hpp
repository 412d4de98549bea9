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

/// Segments of allocate_device_memory() that a rank and its peers on the host offer to each other. Each is opened once
/// per peer. For one thread at a time, except where a comment says otherwise.
class OfferedMemory {
 public:
  /// Serves the ranks that meet in `set`. A peer must have been met before memory is offered to it.
  OfferedMemory(std::shared_ptr<Context const> context, Introductions& introductions, int set)
      : context_(std::move(context)), introductions_(introductions), set_(set) {}

  /// Place of `memory` of this rank for `peer`; offers its segment first if needed. The place has segment 0 if the
  /// memory cannot be shared or the peer cannot be told now.
  [[nodiscard]] MemoryPlace offer(int peer, std::span<std::byte const> memory);
  /// True if memory may have been offered to a peer. Thread-safe.
  [[nodiscard]] bool has_offered() const { return has_offered_; }
  /// Local address of a place of `peer`; maps its segment first if needed. @throws SystemError.
  [[nodiscard]] CUdeviceptr address_of(int peer, MemoryPlace const& place);

  /// Total size of the peers' segments mapped here.
  [[nodiscard]] std::uint64_t mapped_bytes() const;

  /// Calls `tell` with the peer and text of each notice about segments freed since the last call, and unmaps segments
  /// that peers have freed. Cheap if there is nothing to do.
  void take_news(std::function<void(int peer, std::string text)> const& tell);
  /// Processes a text that take_news() produced at `peer`. Thread-safe; calls no driver function.
  /// @throws UsageError if it is malformed.
  void heard(int peer, std::string_view text);
  /// True if `text` has the form of such a text.
  [[nodiscard]] static bool is_for_us(std::string_view text) { return text.size() == sizeof(std::uint64_t); }

 private:
  struct Mapped {
    FileDescriptor descriptor{};  ///< Open until it is mapped.
    DeviceSegment memory{};
  };

  /// Segment of a peer. Receives its descriptor first if needed.
  [[nodiscard]] Mapped& segment_of(int peer, std::uint64_t segment);

  std::shared_ptr<Context const> context_;
  Introductions& introductions_;
  int const set_;
  /// By peer, in order of the offers. Reset once the peer knows that it is freed.
  std::map<int, std::vector<std::weak_ptr<SharedSegment const>>> offered_;
  std::map<int, std::vector<Mapped>> mapped_;  ///< By peer, in order of its offers.
  std::uint64_t num_freed_ = 0;
  std::atomic<bool> has_offered_ = false;

  std::mutex freed_mutex_;  ///< Guards the members below.
  std::vector<std::pair<int, std::uint64_t>> freed_;
};

}  // namespace headway::comm::nvlink
