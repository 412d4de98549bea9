// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/peer_copy/ipc_exchange.hpp"
#include "device/peer_copy/layout.hpp"
#include "device/peer_copy/shared_memory.hpp"

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

namespace headway::comm::peer_copy {

/// Segments of allocate_device_memory() that a rank and its peers on the host export to each other. Each is opened
/// once per peer. For one thread at a time, except where a comment says otherwise.
///
/// Idea: an output usually lies in memory that an allocator made once and hands out many times. So the segment is
/// mapped at the peer when it is first needed, and later outputs in it cost only an offset. Segments are numbered
/// from 1 by the order of their exports to that peer, so no name has to travel with the descriptor.
///
/// Example: rank 1 exports segment A to rank 0, later segment B. An output 4096 bytes into B is the range (2, size of
/// B, 4096). Rank 0 takes descriptors from its mailbox until it has two, maps the second, and adds 4096 to its
/// address.
///
/// Invariant: a number is never used again. When a segment is freed, its owner tells the peers by its number, and
/// they unmap it at their next operation. Until then the peer's mapping keeps the physical memory, but nobody writes
/// to it.
class ExportedMemory {
 public:
  /// `set`: number under which `ipc_exchange` has exchanged hellos with the peers. Descriptors go to the mailboxes that
  /// these hellos name, so export memory to a peer only after its link is in use.
  ExportedMemory(std::shared_ptr<Context const> context, IpcExchange& ipc_exchange, int set)
      : context_(std::move(context)), ipc_exchange_(ipc_exchange), set_(set) {}

  /// Range of `memory` of this rank for `peer`; exports its segment first if needed. The range has segment 0 if the
  /// memory cannot be shared or the peer cannot be told now.
  [[nodiscard]] WindowRange export_to(int peer, std::span<std::byte const> memory);
  /// True if memory may have been exported to a peer. Thread-safe.
  [[nodiscard]] bool has_exported() const { return has_exported_; }
  /// Local address of a range of `peer`; maps its segment first if needed. @throws SystemError.
  [[nodiscard]] CUdeviceptr address_of(int peer, WindowRange const& range);

  /// Total size of the peers' segments mapped here.
  [[nodiscard]] std::uint64_t mapped_bytes() const;

  /// Calls `send` with the peer and text of each message about segments freed since the last call, and unmaps segments
  /// that peers have freed. Cheap if there is nothing to do.
  void take_news(std::function<void(int peer, std::string text)> const& send);
  /// Processes a text that take_news() produced at `peer`. Thread-safe; calls no driver function.
  /// @throws UsageError if it is malformed.
  void on_oob(int peer, std::string_view text);
  /// True if `text` has the form of such a text.
  [[nodiscard]] static bool is_for_us(std::string_view text) { return text.size() == sizeof(std::uint64_t); }

 private:
  struct Mapped {
    base::FileDescriptor descriptor{};  ///< Open until it is mapped.
    DeviceSegment memory{};
  };

  /// Segment of a peer. Receives its descriptor first if needed.
  [[nodiscard]] Mapped& segment_of(int peer, std::uint64_t segment);

  std::shared_ptr<Context const> context_;
  IpcExchange& ipc_exchange_;
  int const set_;
  /// By peer, in order of the exports. Reset once the peer knows that it is freed.
  std::map<int, std::vector<std::weak_ptr<SharedSegment const>>> exported_;
  std::map<int, std::vector<Mapped>> mapped_;  ///< By peer, in order of its exports.
  std::uint64_t num_freed_ = 0;                ///< SharedMemory::num_freed() at the last take_news().
  std::atomic<bool> has_exported_ = false;

  std::mutex freed_mutex_;                            ///< Guards the members below.
  std::vector<std::pair<int, std::uint64_t>> freed_;  ///< (peer, segment): freed there, not yet unmapped here.
};

}  // namespace headway::comm::peer_copy
