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

enum class Engine {
  kAuto,    ///< shm for peers on this host, tcp for the rest.
  kInproc,  ///< Ranks are threads of this process.
  kShm,
  kTcp,
  kVerbs,  ///< RDMA to all peers, also on this host. Only where the build has it and the host a device that is up.
};

/// Least length of a secret that is given. Who sees a handshake can try secrets as fast as it can compute.
inline constexpr std::size_t kMinSecretBytes = 8;

/// Name of an element type, for error messages; any thread may call it.
using DataTypeName = std::string (*)(DataType) noexcept;

/// Settings of a group. Ranks must agree on name, engine, max_lag_limit, adapt_lag, slot_bytes, num_channels,
/// allow_pull, rdma_rails and what tests set; connecting fails otherwise and names the difference. The others belong to
/// each rank.
struct GroupOptions {
  Engine engine = Engine::kAuto;
  int max_lag = 0;         ///< Bound k of each channel at first: a rank may run this many all-to-alls ahead.
  int max_lag_limit = -1;  ///< Largest bound that set_max_lag() may choose; -1: max_lag. Fixes the ring's depth.
  /// Find out which bound is worth having, for recommended_max_lag(): each message of an all-to-all then says how long
  /// its sender was busy, in 8 bytes.
  bool adapt_lag = false;
  std::size_t slot_bytes = 256 * 1024;  ///< Largest block per pair of ranks that lags; larger blocks are legal.
  std::size_t pull_bytes =
      64 * 1024;  ///< Blocks of all-to-alls from this size are read from the sender's memory where that works.
  /// Such blocks go in fragments nevertheless from this size, if sender and receiver are both in
  /// all_to_all_v_and_wait(): the fragments stay in cache, and the output is written past it.
  std::size_t stream_bytes = std::size_t{8} << 20;
  /// With a bound above 0: how large what a rank sends in one exchange must be, times the depth of the ring, for such
  /// blocks to be read there. Below, the slots stay in cache, and going through them is faster.
  std::size_t offer_footprint = std::size_t{4} << 20;
  /// With a bound above 0: how long a rank that lacks nothing else leaves such a block to its receiver, for each begun
  /// 256 KiB of the block, before it takes the offer back and sends the block.
  std::chrono::microseconds offer_patience{50};
  /// Most bytes of messages that are held here because they came before their receive was posted, of all ranks
  /// together. Beyond it their senders wait; where a receive waits for the same sender, the group fails after 30 s.
  std::size_t unexpected_bytes = std::size_t{64} << 20;
  bool allow_pull = true;  ///< Whether a peer's memory may be read at all; otherwise large blocks go in fragments.
  int num_channels = 1;    ///< Independent all-to-all sequences, 1 to 64.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);  ///< For each operation, from its start.
  std::chrono::milliseconds connect_timeout = std::chrono::minutes(5);
  /// How many operations flight_records() gives: of each channel's all-to-alls, and of all other operations together.
  /// Rounded up to a power of two; 0: it gives none at all.
  std::size_t flight_records = 256;
  DataTypeName data_type_name = nullptr;  ///< Null: messages give types as numbers.
  std::string name;                       ///< Distinguishes groups that use one store; part of the handshake.
  /// Shared by the ranks, at least 8 bytes; empty: rank 0 draws one and passes it through the store.
  std::string secret;
  /// Network interface for traffic between hosts, by name or by one of its addresses: tcp listens on its addresses and
  /// connects from them, and verbs prefers a device that has one of them. Empty: tcp listens on all.
  std::string interface;
  std::string rdma_device;  ///< For verbs: DEVICE, DEVICE:PORT or DEVICE:PORT:GID_INDEX; empty: chosen.
  int rdma_rails = 1;       ///< Queue pairs that verbs makes to each peer, 1 to 8.
  std::size_t rdma_cache_bytes = std::size_t{4} << 30;  ///< Memory of allocate() that verbs keeps registered.
  bool wrap_checked = false;                            ///< Verify the transport contract (engine `checked`): tests.
  std::uint64_t fault_seed = 0;  ///< With wrap_checked: delay, repeat and reorder notifications by this seed; 0: none.
  std::string mutant;            ///< A planted fault by name; only where built with HEADWAY_TEST_MUTANTS.
  /// Called about every 100 ms by the thread that connects while it waits; what it throws ends connecting, here and at
  /// the peers.
  std::function<void()> while_connecting;
};

/// One rank's part of an operation, as its waiters see it. Thread-safe.
class Operation {
 public:
  virtual ~Operation() = default;
  [[nodiscard]] virtual bool done() const = 0;
  /// Meaningful once done.
  [[nodiscard]] virtual Status status() const = 0;
  /// Operation number within its channel, from 0; for error messages and traces.
  [[nodiscard]] virtual std::uint64_t number() const = 0;
  /// Rank that a receive_any() matched; -1 for all else. Meaningful once done.
  [[nodiscard]] virtual int source() const = 0;
};
using OperationPtr = std::shared_ptr<Operation>;

struct AllToAllArgs {
  std::span<std::span<std::byte const> const>
      sends;  ///< (size) block for each rank; its memory is the library's until wait().
  std::span<std::span<std::byte> const> receives;  ///< (size) block from each rank.
  DataType data_type = 0;
  int channel = 0;
};

struct PeerStats {
  double wait_s = 0;  ///< Seconds that waits of this rank lasted because of this peer (the last to arrive).
  std::uint64_t waits = 0;
  std::uint64_t bytes_sent = 0, bytes_received = 0, messages_sent = 0, messages_received = 0;
  std::uint64_t repeated_fragments = 0;  ///< Notifications dropped because the fragment had arrived before.
};

struct GroupStats {
  std::vector<PeerStats> peers;  ///< (size)
  /// Entry i: all-to-alls completed while i later ones of their channel were posted.
  std::vector<std::uint64_t> lag_histogram;
  std::vector<double> wait_s_by_lag;  ///< Seconds waited at that lag.
  std::uint64_t operations = 0;       ///< All-to-alls completed.
  std::uint64_t offers_revoked = 0;   ///< Large blocks that a receiver did not fetch in time: they were sent.
  std::uint64_t lag_lost = 0;         ///< All-to-alls with a block larger than a slot while their bound was above 0.
  std::uint64_t queued = 0;           ///< Operations that could not be posted at their start.
  std::uint64_t landing_bytes = 0;    ///< Library-owned memory that peers write to, as reserved.
};

/// One completed all-to-all, for traces. Times are seconds of Clock since its epoch.
struct TraceEvent {
  std::uint64_t number;
  int channel;
  double started_s, posted_s, completed_s;
  std::uint64_t bytes_sent, bytes_received;
  int last_peer;  ///< The peer that arrived last; -1 if none was waited for.
  int lag;        ///< Later operations of its channel posted when it completed.
};

struct ShrunkGroup;
class GroupCompanion;

/// A set of ranks that exchange bytes. Thread-safe; every call moves all pending work of the group on.
///
/// Operations of a kind must be started in the same order by all ranks. Starting never blocks. Source and output
/// memory belong to the library until the operation is done.
class Group {
 public:
  /// Connects `size` ranks. @throws UsageError, or SystemError naming what differs or who is missing.
  static std::unique_ptr<Group> connect(int rank, int size, Store& store, GroupOptions options);
  virtual ~Group() = default;

  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  [[nodiscard]] virtual GroupOptions const& options() const = 0;
  [[nodiscard]] virtual PeerTraits traits(int peer) const = 0;
  /// Numeric address under which this rank reaches the host of a peer; 127.0.0.1 for one of this host.
  [[nodiscard]] virtual std::string address(int peer) const = 0;
  /// Numeric address of this host at which the peers reached this rank, for further connections among the same ranks:
  /// an address of options().interface where that is given; 127.0.0.1 if all ranks are on this host.
  [[nodiscard]] virtual std::string own_address() const = 0;
  /// Random text that all ranks of this group have, and no group that was or will be connected under the same name.
  [[nodiscard]] virtual std::string const& generation() const = 0;

  /// Bounded-lag exchange: receives[r] gets what rank r gave as sends[rank()].
  virtual OperationPtr all_to_all_v(AllToAllArgs const& args) = 0;
  /// The same, and wait(): for callers with nothing to do meanwhile. It costs less than the two calls.
  virtual Status all_to_all_v_and_wait(AllToAllArgs const& args) = 0;

  /// Messages between two ranks with equal `match` arrive in order. `match` below 2^63.
  virtual OperationPtr send(std::span<std::byte const> block, int peer, std::uint64_t match, DataType type) = 0;
  virtual OperationPtr receive(std::span<std::byte> block, int peer, std::uint64_t match, DataType type) = 0;
  virtual OperationPtr receive_any(std::span<std::byte> block, std::uint64_t match, DataType type) = 0;

  /// Collectives; each is synchronous (k = 0) and they share one order.
  virtual OperationPtr broadcast(std::span<std::byte> block, int root, DataType type) = 0;
  /// receives: (size) blocks at the root, else empty.
  virtual OperationPtr gather(std::span<std::byte const> block, std::span<std::span<std::byte> const> receives,
                              int root, DataType type) = 0;
  virtual OperationPtr scatter(std::span<std::span<std::byte const> const> sends, std::span<std::byte> block, int root,
                               DataType type) = 0;
  virtual OperationPtr all_gather(std::span<std::byte const> block, std::span<std::span<std::byte> const> receives,
                                  DataType type) = 0;
  virtual OperationPtr barrier() = 0;

  /// Blocks until `operation` and, for all-to-alls, all older ones of its channel are done.
  /// @returns the operation's status, or kTimeout (the operation goes on) when `timeout` passes first.
  virtual Status wait(Operation& operation, std::optional<std::chrono::milliseconds> timeout = std::nullopt) = 0;
  /// Moves pending work on without blocking; returns whether the operation is done.
  virtual bool test(Operation& operation) = 0;
  /// Calls `callback` once when the operation is done: before this returns if it is done by then, else on the group's
  /// callback thread. No lock is held meanwhile: the callback may block, call into any group and destroy groups, also
  /// this one. It delays later callbacks of this group only. Destroying the group waits for its callbacks, except in
  /// one of them. Polls for up to `poll_time` first, unless ranks share cores: the shortest exchanges are over before
  /// another thread could be woken. @throws SystemError if the system has no thread left; the callback is not taken
  /// then.
  virtual void on_done(Operation& operation, std::function<void()> callback,
                       std::chrono::microseconds poll_time = std::chrono::microseconds(20)) = 0;

  /// Time-out of operations that start from now on; local.
  virtual void set_timeout(std::chrono::milliseconds timeout) = 0;
  [[nodiscard]] virtual std::chrono::milliseconds timeout() const = 0;
  /// Bound from now on, 0 to options().max_lag_limit, of one channel, or of all where none is given; local, needs no
  /// agreement.
  virtual void set_max_lag(int max_lag, std::optional<int> channel = std::nullopt) = 0;
  /// Bound of a channel now.
  [[nodiscard]] virtual int max_lag(int channel) = 0;
  /// The smallest bound up to options().max_lag_limit under which the latest all-to-alls of a channel would have taken
  /// at most 2.5% longer than under the best one; that limit for the first 24. Nothing follows it by itself: how far a
  /// loop runs ahead is the loop's choice. @throws UsageError without options().adapt_lag.
  [[nodiscard]] virtual int recommended_max_lag(int channel) = 0;
  /// Fails all pending and later work, here and at the peers, with `reason`.
  virtual void abort(std::string const& reason) = 0;
  /// Waits until the messages that this rank has started to send are delivered: operations that lack nothing from a
  /// peer, and whose memory peers still need. To be called before the group is left.
  /// @returns ok, also if the group had failed before; kTimeout when `timeout` passes first, naming peer and message;
  /// or the failure that ended the group meanwhile.
  virtual Status deliver(std::chrono::milliseconds timeout) = 0;
  /// Leaves the group now, as destroying it does: what is pending fails here, and at peers what needs this rank. All
  /// later calls fail with `reason`.
  virtual void leave(std::string const& reason) = 0;
  /// Makes a new group of the ranks that are left, after a failure or in order to leave out `ranks_to_exclude`. All of
  /// them must call it. They agree over the connections of this group, which fails if it has not yet; the store is not
  /// needed. Ranks that say nothing for `timeout` are left out. Bounds stay as set_max_lag() left them. The caller
  /// resumes where ShrunkGroup says, and destroys this group. @throws OperationError: another rank goes on without this
  /// one (kAborted), or the ranks that are left did not agree in time (kTimeout); SystemError: they could not be
  /// connected.
  [[nodiscard]] virtual ShrunkGroup shrink(std::span<int const> ranks_to_exclude,
                                           std::chrono::milliseconds timeout) = 0;
  /// The first failure of the group, or ok. Cheap; sees a lost peer without any operation pending.
  [[nodiscard]] virtual Status health() = 0;

  [[nodiscard]] virtual GroupStats stats() = 0;
  virtual void reset_stats() = 0;
  /// Starts (capacity > 0) or stops (0) recording; drain_trace() returns and clears what was recorded.
  virtual void set_trace_capacity(std::size_t capacity) = 0;
  virtual std::vector<TraceEvent> drain_trace() = 0;

  /// What is pending, and the last operations that completed (options().flight_records), in the order of their starts.
  /// Of a group that has failed: as it was when it failed.
  [[nodiscard]] virtual std::vector<FlightRecord> flight_records() = 0;
  /// For DeviceGroup, which is all that may follow a group's life so: one at a time.
  virtual void attach(GroupCompanion& companion) = 0;
  virtual void detach(GroupCompanion& companion) noexcept = 0;
  /// Says `text` to the companion of `peer`, in order. Less than kMaxNoticeBytes.
  virtual void tell(int peer, std::string_view text) = 0;
  using FailureCallback = std::function<void(Status const& failure, std::vector<FlightRecord> const& records)>;
  /// Calls `callback` once when the group fails, before any operation is done with that error, or at once if it has
  /// failed: also where no thread waits for anything, and on any thread of this rank. The group is locked meanwhile: it
  /// must neither throw, nor call into the group, nor wait for a thread that does. Leaving the group is no failure.
  virtual void on_failure(FailureCallback callback) = 0;
};

/// What shrink() returns. Its ranks have completed the operations of the old group below the numbers given here, each
/// of them perhaps a few more: those are to be done again.
struct ShrunkGroup {
  std::unique_ptr<Group> group;
  std::vector<int> ranks;                  ///< (new size) Their ranks in the old group, ascending.
  std::vector<std::uint64_t> all_to_alls;  ///< (num_channels) All-to-alls that every rank of the new group completed.
  std::uint64_t collectives = 0;           ///< The same of the other collectives.
};

}  // namespace headway::comm
