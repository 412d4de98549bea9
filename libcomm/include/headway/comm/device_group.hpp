#pragma once

#include "headway/comm/group.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

namespace headway::comm {

/// A stream of CUDA's driver, as its runtime and torch hand it out too; null: the legacy default stream.
using DeviceStream = void*;

struct DeviceOptions {
  int ordinal = 0;                                ///< The device, as CUDA numbers it in this process.
  std::size_t slot_bytes = std::size_t{8} << 20;  ///< What a larger block is cut into; alike on all ranks.
};

/// Where an operation stands: after what is enqueued on `stream` so far.
struct DeviceCall {
  DeviceStream stream = nullptr;
  std::optional<std::chrono::milliseconds> timeout;  ///< From its start; the group's where there is none.
};

struct DeviceStats {
  std::uint64_t operations = 0;                      ///< Started.
  std::uint64_t bytes_sent = 0, bytes_received = 0;  ///< To and from other ranks.
  /// Copies inside a device, which run on its multiprocessors: out of slots, and of blocks to the own rank.
  std::uint64_t local_copies = 0, local_copy_bytes = 0;
  std::uint64_t landing_bytes = 0;  ///< Memory of the device that is reserved for what peers send.
  std::uint64_t mapped_bytes = 0;   ///< Memory of peers (allocate_device_memory()) into which this rank can write.
};

/// One rank's part of an operation on device memory. Thread-safe.
class DeviceOperation {
 public:
  virtual ~DeviceOperation() = default;
  /// Whether the device is done, also with what has failed: its memory is the caller's again. Does not block.
  [[nodiscard]] virtual bool done() = 0;
  /// Ok while it is pending. What was not seen to be done when this group, or a peer's, failed counts as failed: the
  /// streams of a rank that fails go on, and may overwrite what has come.
  [[nodiscard]] virtual Status status() = 0;
  /// Whether peers write into its output themselves (allocate_device_memory()). Such memory must be used for nothing
  /// else until done(), and never again if status() is an error then.
  [[nodiscard]] virtual bool is_written_by_peers() const = 0;
  /// Lets all that is enqueued on `stream` from now on come after the operation; the host does not wait.
  virtual void join(DeviceStream stream) = 0;
};
using DeviceOperationPtr = std::shared_ptr<DeviceOperation>;

struct DeviceSlotsOptions {
  std::size_t block_bytes = 0;  ///< Most that a rank sends another; a multiple of 512. Alike on all ranks, as all here.
  int num_slots = 2;            ///< How many slots may be leased at once, or be under way.
  int max_lag = 0;              ///< Bound of the exchanges; below num_slots.
};

/// Slots in device memory in which blocks are exchanged where they are: nothing is copied inside a device. Slot t mod
/// num_slots of operation t holds the blocks of all ranks in their order, block_bytes apart. A slot is leased from
/// take() to release(); others write into it when it is free again. Thread-safe; to be destroyed before its group.
class DeviceSlots {
 public:
  virtual ~DeviceSlots() = default;
  struct Slot {
    std::uint64_t number;         ///< Of the operation.
    std::span<std::byte> memory;  ///< (size * block_bytes); the own block is the caller's to write.
  };
  /// Leases the next slot: `stream` waits for the end of its last lease. @throws UsageError that names it, if that has
  /// not ended, or if the slot that was taken last has not been exchanged.
  [[nodiscard]] virtual Slot take(DeviceStream stream) = 0;
  /// Sends sends[r] to each other rank r, and gets received_bytes[r] of it in the slot. In the order of take().
  /// sends[rank()] is not looked at.
  virtual DeviceOperationPtr all_to_all_v(std::uint64_t number, std::span<std::span<std::byte const> const> sends,
                                          std::span<std::size_t const> received_bytes, DataType type,
                                          DeviceCall const& call) = 0;
  /// Ends a lease after what is enqueued on `streams` so far.
  virtual void release(std::uint64_t number, std::span<DeviceStream const> streams) = 0;
};

/// A group's exchanges of memory on CUDA devices, in the order of streams: each call enqueues copies by
/// copy engines, and words that streams write and wait for, and returns. It blocks the host only to connect with a peer
/// at the first operation with it, where a peer's host is more than 100 operations behind, and for up to 20 us to learn
/// where a block may go directly (allocate_device_memory()).
///
/// An operation begins when what was enqueued on `stream` before the call is done. Until join(), or done(), its source
/// and output memory belong to the library. It fails with its group, whatever happens on the device: then its output is
/// undefined, and every stream goes on. Calls as in Group, with spans of device memory; thread-safe.
class DeviceGroup {
 public:
  /// Of `group`, which must outlive it; one per group. The process must use CUDA already.
  /// @throws UsageError, or SystemError naming the CUDA call that was refused.
  static std::unique_ptr<DeviceGroup> make(Group& group, DeviceOptions const& options);
  /// Waits until the device is done with all operations, or they have failed.
  virtual ~DeviceGroup() = default;

  [[nodiscard]] virtual int ordinal() const = 0;

  /// Bounded-lag exchange: no rank's part of operation t begins before its part of t - max_lag - 1 is complete.
  virtual DeviceOperationPtr all_to_all_v(AllToAllArgs const& args, DeviceCall const& call) = 0;
  virtual DeviceOperationPtr broadcast(std::span<std::byte> block, int root, DataType type, DeviceCall const& call) = 0;
  virtual DeviceOperationPtr gather(std::span<std::byte const> block, std::span<std::span<std::byte> const> receives,
                                    int root, DataType type, DeviceCall const& call) = 0;
  virtual DeviceOperationPtr scatter(std::span<std::span<std::byte const> const> sends, std::span<std::byte> block,
                                     int root, DataType type, DeviceCall const& call) = 0;
  virtual DeviceOperationPtr all_gather(std::span<std::byte const> block,
                                        std::span<std::span<std::byte> const> receives, DataType type,
                                        DeviceCall const& call) = 0;
  /// Messages between two ranks are matched in the order of their starts; a different `match` is an error.
  virtual DeviceOperationPtr send(std::span<std::byte const> block, int peer, std::uint64_t match, DataType type,
                                  DeviceCall const& call) = 0;
  virtual DeviceOperationPtr receive(std::span<std::byte> block, int peer, std::uint64_t match, DataType type,
                                     DeviceCall const& call) = 0;

  /// A ring of slots of its own; all ranks make it at the same point among their operations, and block until all do.
  [[nodiscard]] virtual std::unique_ptr<DeviceSlots> make_slots(DeviceSlotsOptions const& options) = 0;

  [[nodiscard]] virtual DeviceStats stats() = 0;
};

}  // namespace headway::comm
