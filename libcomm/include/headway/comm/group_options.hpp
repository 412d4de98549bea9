// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/comm/flight_record.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace headway::comm {

/// Transport of a group.
enum class Transport {
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

/// Settings of a group. Ranks must agree on name, transport, max_lag_limit, adapt_lag, slot_bytes, message_slot_bytes,
/// num_channels, allow_get, rdma_rails and the settings for tests; otherwise connecting fails and names the difference.
/// Each rank chooses the others for itself.
struct GroupOptions {
  Transport transport = Transport::kAuto;
  int max_lag = 0;         ///< Initial max_lag of each channel: a rank may run this many all-to-alls ahead.
  int max_lag_limit = -1;  ///< Largest value that set_max_lag() accepts; -1: max_lag. Fixes the ring depth, which is
                           ///< the number of receive slots per peer and channel: 2 * (max_lag_limit + 1).
  /// Collect data for recommended_max_lag(). Each all-to-all message then carries 8 more bytes: how long its sender
  /// worked between waits.
  bool adapt_lag = false;
  /// Largest block for one peer that can lag. An exchange with a larger one works, but does not lag.
  std::size_t slot_bytes = 256 * 1024;
  /// Largest message of send() that leaves at once, 64 bytes to 1 MiB. A larger one waits until the receiver tells
  /// where it belongs, for a round trip at least. Each pair of ranks has 16 slots of this size; memory that was never
  /// used takes only addresses.
  std::size_t message_slot_bytes = 8 * 1024;
  /// All-to-all blocks from this size on are read from the sender's memory, where the transport can.
  std::size_t min_get_bytes = 64 * 1024;
  /// All-to-all blocks from this size on go in fragments instead, if both ranks are in all_to_all_v_and_wait():
  /// fragments stay in cache, and the output is written with streaming stores.
  std::size_t stream_bytes = std::size_t{8} << 20;
  /// Threshold in bytes for reading blocks from the sender's memory while max_lag is above 0: this rank's bytes of
  /// one exchange, times the ring depth, must exceed it. Below it the slots stay in cache and are faster.
  std::size_t get_footprint = std::size_t{4} << 20;
  /// Time, per started 256 KiB, that a sender with max_lag above 0 leaves a block to its receiver after announcing it
  /// (RTS, ready to send), counted from when its operation waits for nothing else. Then the sender revokes the RTS and
  /// sends the block itself.
  std::chrono::microseconds rts_patience{50};
  /// Limit in bytes, over all source ranks, on messages held because no receive was posted for them. Beyond it their
  /// senders wait. If a receive waits for such a sender for 30 s, the group fails (earlier if half the timeout is
  /// shorter).
  std::size_t unexpected_bytes = std::size_t{64} << 20;
  bool allow_get = true;  ///< May peers' memory be read at all? If not, large blocks go in fragments.
  int num_channels = 1;   ///< Independent sequences of all-to-alls, 1 to 64.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);  ///< Time limit of each operation, from its start.
  std::chrono::milliseconds connect_timeout = std::chrono::minutes(5);
  /// Number of operations that flight_records() keeps: per channel for all-to-alls, and once for all other operations
  /// together. Rounded up to a power of two. 0: records nothing.
  std::size_t flight_records = 256;
  /// Log a warning if a peer leaves while operations wait for it. Links do not, as their ends come and go: level info.
  bool warns_of_departures = true;
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
  bool wrap_checked = false;     ///< Verify the transport contract (transport `checked`); for tests.
  std::uint64_t fault_seed = 0;  ///< Seed of delayed, repeated and reordered notifications, with wrap_checked; 0: none.
  /// The connecting thread calls it about every 100 ms while it waits. An exception from it ends connecting, here and
  /// at the peers.
  std::function<void()> while_connecting;
};

}  // namespace headway::comm
