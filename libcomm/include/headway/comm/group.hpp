#pragma once

#include "headway/comm/endpoint.hpp"
#include "headway/comm/flight_record.hpp"
#include "headway/comm/status.hpp"
#include "headway/comm/store.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace headway::comm {

/// Transport of a group.
enum class Engine {
  kAuto,    ///< shm inside the host; to other hosts verbs if both ranks have RDMA devices that connect, else tcp.
  kInproc,  ///< Ranks are threads of one process.
  kShm,
  kTcp,
  kVerbs,  ///< RDMA to all peers, also on this host. Needs a build with libibverbs headers and an active device.
};

/// Minimum length of a caller's secret. Somebody who observes a handshake can guess secrets offline, at full speed.
inline constexpr std::size_t kMinSecretBytes = 8;

/// Returns the name of an element type, for error messages. Any thread may call it.
using DataTypeName = std::string (*)(DataType) noexcept;

/// Settings of a group. Ranks must agree on name, engine, max_lag_limit, adapt_lag, slot_bytes, num_channels,
/// allow_pull, rdma_rails and the settings for tests; otherwise connecting fails and names the difference. Each rank
/// chooses the others for itself.
struct GroupOptions {
  Engine engine = Engine::kAuto;
  int max_lag = 0;         ///< Initial bound k of each channel: a rank may run this many all-to-alls ahead.
  int max_lag_limit = -1;  ///< Largest bound that set_max_lag() accepts; -1: max_lag. Fixes the depth of the rings.
  /// Collect data for recommended_max_lag(). Each all-to-all message then carries 8 more bytes: how long its sender was
  /// busy.
  bool adapt_lag = false;
  std::size_t slot_bytes = 256 * 1024;  ///< Largest block per pair of ranks that can lag. Larger blocks are legal.
  /// All-to-all blocks from this size on are read from the sender's memory, where the transport can.
  std::size_t pull_bytes = 64 * 1024;
  /// All-to-all blocks from this size on go in fragments instead, if both ranks are in all_to_all_v_and_wait():
  /// fragments stay in cache, and the output is written with streaming stores.
  std::size_t stream_bytes = std::size_t{8} << 20;
  /// Threshold in bytes for reading blocks from the sender's memory while the bound is above 0: this rank's bytes of
  /// one exchange, times the ring depth, must exceed it. Below it the slots stay in cache and are faster.
  std::size_t offer_footprint = std::size_t{4} << 20;
  /// Time, per started 256 KiB, that a sender with a bound above 0 leaves an offered block to its receiver, counted
  /// from when its operation waits for nothing else. Then the sender revokes the offer and sends the block itself.
  std::chrono::microseconds offer_patience{50};
  /// Limit in bytes, over all source ranks, on messages held because no receive was posted for them. Beyond it their
  /// senders wait. If a receive waits for such a sender for 30 s, the group fails (earlier if half the timeout is
  /// shorter).
  std::size_t unexpected_bytes = std::size_t{64} << 20;
  bool allow_pull = true;  ///< May peers' memory be read at all? If not, large blocks go in fragments.
  int num_channels = 1;    ///< Independent sequences of all-to-alls, 1 to 64.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);  ///< Time limit of each operation, from its start.
  std::chrono::milliseconds connect_timeout = std::chrono::minutes(5);
  /// Number of operations that flight_records() keeps: per channel for all-to-alls, and once for all other operations
  /// together. Rounded up to a power of two. 0: records nothing.
  std::size_t flight_records = 256;
  DataTypeName data_type_name = nullptr;  ///< Null: error messages show type codes.
  std::string name;                       ///< Distinguishes groups that share a store. The handshake checks it.
  /// Secret shared by the ranks, at least 8 bytes. Empty: rank 0 draws one and passes it through the store.
  std::string secret;
  /// Network interface for traffic between hosts: its name or one of its addresses. tcp listens on its addresses and
  /// connects from them; verbs prefers a device that has one of them. Empty: tcp listens on all addresses.
  std::string interface;
  std::string rdma_device;  ///< RDMA device: DEVICE, DEVICE:PORT or DEVICE:PORT:GID_INDEX. Empty: chosen.
  int rdma_rails = 1;       ///< Queue pairs of verbs per peer, 1 to 8.
  std::size_t rdma_cache_bytes = std::size_t{4} << 30;  ///< Bytes of allocate() memory that verbs keeps registered.
  bool wrap_checked = false;     ///< Verify the transport contract (engine `checked`); for tests.
  std::uint64_t fault_seed = 0;  ///< Seed of delayed, repeated and reordered notifications, with wrap_checked; 0: none.
  std::string mutant;            ///< Name of a planted fault; for tests. Needs a build with HEADWAY_TEST_MUTANTS.
  /// The connecting thread calls it about every 100 ms while it waits. An exception from it ends connecting, here and
  /// at the peers.
  std::function<void()> while_connecting;
};

/// One rank's part of an operation, as its waiters see it. Thread-safe.
class Operation {
 public:
  virtual ~Operation() = default;
  [[nodiscard]] virtual bool done() const = 0;
  /// Outcome. Valid once done() returns true.
  [[nodiscard]] virtual Status status() const = 0;
  /// Sequence number of the operation, from 0. All-to-alls count within their channel. For error messages and traces.
  [[nodiscard]] virtual std::uint64_t number() const = 0;
  /// Rank that a receive_any() matched; -1 for other operations. Valid once done() returns true.
  [[nodiscard]] virtual int source() const = 0;
};
using OperationPtr = std::shared_ptr<Operation>;

/// Arguments of one all-to-all. The block to the own rank must have the size of the one from it.
struct AllToAllArgs {
  /// (size) Block for each rank. Its memory belongs to the library until the operation is done.
  std::span<std::span<std::byte const> const> sends;
  std::span<std::span<std::byte> const> receives;  ///< (size) Block from each rank, as large as the sender's.
  DataType data_type = 0;
  int channel = 0;
};

/// Counters towards one peer, since connecting or reset_stats().
struct PeerStats {
  double wait_s = 0;  ///< Seconds that this rank waited for this peer, the last one to arrive.
  std::uint64_t waits = 0;
  std::uint64_t bytes_sent = 0, bytes_received = 0, messages_sent = 0, messages_received = 0;
  std::uint64_t repeated_fragments = 0;  ///< Notifications dropped because their fragment had already arrived.
};

/// Counters of a group on this rank, since connecting or reset_stats().
struct GroupStats {
  std::vector<PeerStats> peers;  ///< (size)
  /// Entry i: number of all-to-alls that completed while i later ones of their channel were posted.
  std::vector<std::uint64_t> lag_histogram;
  std::vector<double> wait_s_by_lag;  ///< Entry i: seconds waited at lag i.
  std::uint64_t operations = 0;       ///< All-to-alls completed.
  std::uint64_t offers_revoked = 0;   ///< Large blocks that this rank sent after their receiver did not fetch them.
  std::uint64_t lag_lost = 0;         ///< Blocks larger than a slot that this rank sent while the bound was above 0.
  std::uint64_t queued = 0;           ///< All-to-alls that could not be posted at their start.
  std::uint64_t landing_bytes = 0;    ///< Receive memory: library-owned bytes that peers write to, as reserved.
};

/// One completed all-to-all, for traces. Times are seconds of Clock since its epoch.
struct TraceEvent {
  std::uint64_t number;
  int channel;
  double started_s, posted_s, completed_s;
  std::uint64_t bytes_sent, bytes_received;
  int last_peer;  ///< Source of the last block that arrived; -1 if none came.
  int lag;        ///< Number of later operations of its channel that were posted when it completed.
};

struct ShrunkGroup;
class GroupCompanion;

/// A set of ranks that exchange bytes. Thread-safe. Most calls also move pending operations of the group on.
///
/// All ranks must start the operations of one kind in the same order. Starting never blocks. Source and output memory
/// belong to the library until the operation is done.
class Group {
 public:
  /// Connects `size` ranks. @throws UsageError, or SystemError that names what differs or who is missing.
  static std::unique_ptr<Group> connect(int rank, int size, Store& store, GroupOptions options);
  virtual ~Group() = default;

  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  [[nodiscard]] virtual GroupOptions const& options() const = 0;
  [[nodiscard]] virtual PeerTraits traits(int peer) const = 0;
  /// Numeric address at which this rank reaches a peer's host; 127.0.0.1 for a peer on this host.
  [[nodiscard]] virtual std::string address(int peer) const = 0;
  /// Numeric address of this host at which peers reached this rank, for further connections among the same ranks. An
  /// address of options().interface if one is given; 127.0.0.1 if all ranks are on this host.
  [[nodiscard]] virtual std::string own_address() const = 0;
  /// Random text, the same on all ranks of this group. Groups connected earlier or later under the same name have other
  /// texts.
  [[nodiscard]] virtual std::string const& generation() const = 0;

  /// All-to-all with bounded lag: receives[r] gets the block that rank r gave as sends[rank()].
  virtual OperationPtr all_to_all_v(AllToAllArgs const& args) = 0;
  /// all_to_all_v() followed by wait(), for callers with nothing to do meanwhile. Costs less than the two calls.
  virtual Status all_to_all_v_and_wait(AllToAllArgs const& args) = 0;

  /// Point-to-point messages. Those between two ranks with equal `match` arrive in order. `match` is below 2^63.
  virtual OperationPtr send(std::span<std::byte const> block, int peer, std::uint64_t match, DataType type) = 0;
  virtual OperationPtr receive(std::span<std::byte> block, int peer, std::uint64_t match, DataType type) = 0;
  virtual OperationPtr receive_any(std::span<std::byte> block, std::uint64_t match, DataType type) = 0;

  /// Collectives. Each is synchronous (k = 0), and all of them share one order.
  virtual OperationPtr broadcast(std::span<std::byte> block, int root, DataType type) = 0;
  /// `receives`: (size) blocks at the root; not used elsewhere.
  virtual OperationPtr gather(std::span<std::byte const> block, std::span<std::span<std::byte> const> receives,
                              int root, DataType type) = 0;
  virtual OperationPtr scatter(std::span<std::span<std::byte const> const> sends, std::span<std::byte> block, int root,
                               DataType type) = 0;
  virtual OperationPtr all_gather(std::span<std::byte const> block, std::span<std::span<std::byte> const> receives,
                                  DataType type) = 0;
  virtual OperationPtr barrier() = 0;

  /// Blocks until `operation` is done. All older all-to-alls of its channel are then done as well.
  /// @returns the operation's status, or kTimeout (the operation goes on) when `timeout` passes first.
  virtual Status wait(Operation& operation, std::optional<std::chrono::milliseconds> timeout = std::nullopt) = 0;
  /// Moves pending operations on without blocking. @returns whether `operation` is done.
  virtual bool test(Operation& operation) = 0;
  /// Calls `callback` once, when the operation is done. If it is done before this function returns, the calling thread
  /// runs the callback, otherwise the group's callback thread does. The library holds no lock meanwhile: the callback
  /// may block, call into any group, and destroy groups, this one included. A slow callback delays only later callbacks
  /// of this group. Destroying the group waits for its callbacks, except inside one of them. First polls for up to
  /// `poll_time`, unless ranks share cores: the shortest exchanges end before another thread could wake.
  /// @throws SystemError if the system has no thread left; the callback is then not registered.
  virtual void on_done(Operation& operation, std::function<void()> callback,
                       std::chrono::microseconds poll_time = std::chrono::microseconds(20)) = 0;

  /// Timeout of operations that start from now on. Local to this rank.
  virtual void set_timeout(std::chrono::milliseconds timeout) = 0;
  [[nodiscard]] virtual std::chrono::milliseconds timeout() const = 0;
  /// Bound of one channel from now on, or of all channels if `channel` is empty: 0 to options().max_lag_limit. Local to
  /// this rank; needs no agreement.
  virtual void set_max_lag(int max_lag, std::optional<int> channel = std::nullopt) = 0;
  /// Present bound of a channel.
  [[nodiscard]] virtual int max_lag(int channel) = 0;
  /// Recommended bound: the smallest one, up to options().max_lag_limit, under which the latest all-to-alls of the
  /// channel would have taken at most 2.5% longer than under the best bound (details: lag_advisor.hpp). For the first
  /// 24 exchanges it is the limit. The group does not apply it: the caller decides how far its loop runs ahead.
  /// @throws UsageError without options().adapt_lag.
  [[nodiscard]] virtual int recommended_max_lag(int channel) = 0;
  /// Fails all pending and later operations with `reason`, here and at the peers.
  virtual void abort(std::string const& reason) = 0;
  /// Waits until the messages that this rank started to send are delivered: operations that need no more data from a
  /// peer, but whose memory peers still need. Call it before leaving the group.
  /// @returns ok, also if the group had failed before; kTimeout when `timeout` passes first, naming peer and message;
  /// kPeerLost if a peer leaves without having received a message; or the failure that ended the group meanwhile.
  virtual Status deliver(std::chrono::milliseconds timeout) = 0;
  /// Leaves the group at once, as its destructor does. Pending operations fail here; at peers, those that need this
  /// rank fail. All later calls fail with `reason`.
  virtual void leave(std::string const& reason) = 0;
  /// Makes a new group of the remaining ranks, after a failure or to exclude `ranks_to_exclude`. All remaining ranks
  /// must call it. The old group fails if it has not failed yet. The ranks agree over the connections of the old group
  /// and need no store. Ranks that send nothing for `timeout` are excluded. The new group keeps the bounds of
  /// set_max_lag(). The caller resumes where ShrunkGroup says, and destroys the old group.
  /// @throws OperationError if another rank goes on without this one (kAborted) or the remaining ranks did not agree in
  /// time (kTimeout); SystemError if they could not be connected.
  [[nodiscard]] virtual ShrunkGroup shrink(std::span<int const> ranks_to_exclude,
                                           std::chrono::milliseconds timeout) = 0;
  /// First failure of the group, or ok. Cheap. Detects a lost peer even if no operation is pending.
  [[nodiscard]] virtual Status health() = 0;

  [[nodiscard]] virtual GroupStats stats() = 0;
  virtual void reset_stats() = 0;
  /// Starts (capacity > 0) or stops (0) tracing, for at most `capacity` events per channel. drain_trace() returns and
  /// clears the events.
  virtual void set_trace_capacity(std::size_t capacity) = 0;
  virtual std::vector<TraceEvent> drain_trace() = 0;

  /// Pending operations and the last completed ones (options().flight_records), in the order of their starts. For a
  /// failed group: its state when it failed.
  [[nodiscard]] virtual std::vector<FlightRecord> flight_records() = 0;
  /// Attaches or detaches a DeviceGroup, which shares this group's failures and time limits. At most one at a time.
  virtual void attach(GroupCompanion& companion) = 0;
  virtual void detach(GroupCompanion& companion) noexcept = 0;
  /// Sends `text` to the companion of `peer`, in order. Less than kMaxNoticeBytes.
  virtual void tell(int peer, std::string_view text) = 0;
  using FailureCallback = std::function<void(Status const& failure, std::vector<FlightRecord> const& records)>;
  /// Calls `callback` once when the group fails, before any operation is done with that error, or at once if the group
  /// has already failed. Any thread of this rank may run it, also when no thread waits. It runs under the group's lock:
  /// it must not throw, call into the group, or wait for a thread that does. Leaving the group is not a failure.
  virtual void on_failure(FailureCallback callback) = 0;
};

/// Result of shrink(). Every rank of the new group has completed all operations of the old group below the numbers
/// given here. A rank may have completed a few more; those must be repeated.
struct ShrunkGroup {
  std::unique_ptr<Group> group;
  std::vector<int> ranks;                  ///< (new size) Ranks of the members in the old group, ascending.
  std::vector<std::uint64_t> all_to_alls;  ///< (num_channels) Number of all-to-alls that every member completed.
  std::uint64_t collectives = 0;           ///< Number of other collectives that every member completed.
};

}  // namespace headway::comm
