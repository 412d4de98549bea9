// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/comm/group.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

namespace headway::comm {

/// A CUDA stream: a CUstream of the driver API, a cudaStream_t of the runtime or torch's. Null: the legacy default
/// stream.
using DeviceStream = void*;

/// Settings of a device group. All ranks must give the same slot_bytes.
struct DeviceOptions {
  int ordinal = 0;                                ///< CUDA device ordinal in this process.
  std::size_t slot_bytes = std::size_t{8} << 20;  ///< Size of a slot, into which a peer writes a block. Larger
                                                  ///< blocks are cut into such fragments.
};

/// The stream and the time limit of one operation. The operation comes after all work enqueued on `stream` so far.
struct DeviceCall {
  DeviceStream stream = nullptr;
  std::optional<std::chrono::milliseconds> timeout;  ///< From its start; none: the group's.
};

/// Counters of a device group on this rank, since it was made.
struct DeviceStats {
  std::uint64_t operations = 0;                      ///< Operations started.
  std::uint64_t bytes_sent = 0, bytes_received = 0;  ///< Payload exchanged with other ranks.
  /// Copies inside a device, which run on its multiprocessors: out of slots, of blocks to the own rank, and to peers on
  /// the same device.
  std::uint64_t local_copies = 0, local_copy_bytes = 0;
  std::uint64_t receive_buffer_bytes = 0;  ///< Device memory reserved for what peers send.
  /// Memory of peers (allocate_device_memory()) that this rank has mapped and may write to.
  std::uint64_t mapped_bytes = 0;
};

/// One rank's part of an operation on device memory. Thread-safe.
class DeviceOperation {
 public:
  virtual ~DeviceOperation() = default;
  /// Has the device finished the operation, successfully or not? Then its memory is the caller's again. Does not block.
  [[nodiscard]] virtual bool done() = 0;
  /// Ok while the operation is pending. An operation counts as failed unless it was seen to be done before this group,
  /// or that of a peer it depends on, failed: the streams of a failed rank go on and may overwrite data that has
  /// arrived.
  [[nodiscard]] virtual Status status() = 0;
  /// Do peers write directly into the output (allocate_device_memory())? Then the output must be used for nothing else
  /// until done(), and never again if status() is an error.
  [[nodiscard]] virtual bool is_written_by_peers() const = 0;
  /// Makes all later work on `stream` wait for the operation. The host does not wait.
  virtual void join(DeviceStream stream) = 0;
};
using DeviceOperationPtr = std::shared_ptr<DeviceOperation>;

/// Settings of DeviceSlots. All ranks must give the same values.
struct DeviceSlotsOptions {
  std::size_t block_bytes = 0;  ///< Largest block from one rank to another; a multiple of 512.
  int num_slots = 2;            ///< Number of slots that may be leased or in flight at once.
  int max_lag = 0;              ///< Exchanges by which a rank may run ahead of its peers; below num_slots.
};

/// Slots in device memory for exchanges without a copy inside a device: inputs and outputs stay where they are.
/// Operation t uses slot t mod num_slots. A slot holds one block per rank, in rank order, block_bytes apart. The caller
/// leases a slot from take() to release(); peers write into it only while it is free. Thread-safe. Destroy it before
/// its group.
class DeviceSlots {
 public:
  virtual ~DeviceSlots() = default;
  /// A leased slot.
  struct Slot {
    std::uint64_t seq;            ///< Number of the operation that uses the slot.
    std::span<std::byte> memory;  ///< (size * block_bytes), device. The caller itself fills the block of its own rank.
  };
  /// Leases the next slot. `stream` waits for the end of the slot's previous lease.
  /// @throws UsageError that names the slot if its previous lease has not ended, or if the slot taken last has not been
  /// exchanged.
  [[nodiscard]] virtual Slot take(DeviceStream stream) = 0;
  /// Sends sends[r] to every other rank r, and receives received_bytes[r] bytes of it into the slot. Ignores entry
  /// rank() of both. Slots are exchanged in the order of take().
  virtual DeviceOperationPtr all_to_all_v(std::uint64_t seq, std::span<std::span<std::byte const> const> sends,
                                          std::span<std::size_t const> received_bytes, DataType type,
                                          DeviceCall const& call) = 0;
  /// Ends the lease. The slot becomes free after all work enqueued on `streams` so far.
  virtual void release(std::uint64_t seq, std::span<DeviceStream const> streams) = 0;
};

/// Exchanges of CUDA device memory, ordered by streams. A call enqueues copies by copy engines, and memory words that
/// streams write and wait for; then it returns.
/// The host blocks in three cases only: to connect with a peer, at the first operation with it; while a peer's host is
/// more than 100 operations behind; and for up to 20 us to learn whether a block may go directly into an output
/// (allocate_device_memory()).
///
/// An operation begins when all work enqueued on `stream` before the call is done. Until join() or done(), its source
/// and output memory belong to the library. It fails if its group fails, whatever the device does: then its output is
/// undefined, and every stream goes on. The calls match those of Group, with spans of device memory. Thread-safe.
class DeviceGroup {
 public:
  /// Makes the device group of `group`, at most one per group. `group` must outlive it. The process must have
  /// initialised CUDA.
  /// @throws UsageError if an option is out of its range, or the build has no CUDA.
  /// @throws SystemError naming the CUDA call that was refused.
  static std::unique_ptr<DeviceGroup> make(Group& group, DeviceOptions const& options);
  /// Waits until the device has finished all operations, or they have failed.
  virtual ~DeviceGroup() = default;

  [[nodiscard]] virtual int ordinal() const = 0;

  /// All-to-all with bounded lag: this rank's part of operation t begins after its part of operation t - max_lag - 1 is
  /// complete. max_lag is that of the group's channel in `args`.
  virtual DeviceOperationPtr all_to_all_v(AllToAllArgs const& args, DeviceCall const& call) = 0;
  virtual DeviceOperationPtr broadcast(std::span<std::byte> block, int root, DataType type, DeviceCall const& call) = 0;
  virtual DeviceOperationPtr gather(std::span<std::byte const> block, std::span<std::span<std::byte> const> receives,
                                    int root, DataType type, DeviceCall const& call) = 0;
  virtual DeviceOperationPtr scatter(std::span<std::span<std::byte const> const> sends, std::span<std::byte> block,
                                     int root, DataType type, DeviceCall const& call) = 0;
  virtual DeviceOperationPtr all_gather(std::span<std::byte const> block,
                                        std::span<std::span<std::byte> const> receives, DataType type,
                                        DeviceCall const& call) = 0;
  /// Messages between two ranks are matched in the order of their starts. `match` is the caller's tag of a message:
  /// ranks that give different values get an error.
  virtual DeviceOperationPtr send(std::span<std::byte const> block, int peer, std::uint64_t match, DataType type,
                                  DeviceCall const& call) = 0;
  virtual DeviceOperationPtr receive(std::span<std::byte> block, int peer, std::uint64_t match, DataType type,
                                     DeviceCall const& call) = 0;

  /// Makes slots: num_slots receive buffers on each rank, used in turn. All ranks call it at the same point in their
  /// sequence of operations. It blocks until all ranks have called it.
  [[nodiscard]] virtual std::unique_ptr<DeviceSlots> make_slots(DeviceSlotsOptions const& options) = 0;

  [[nodiscard]] virtual DeviceStats stats() = 0;
};

}  // namespace headway::comm
