// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bootstrap/control_socket.hpp"
#include "headway/comm/endpoint.hpp"
#include "transport/doorbell.hpp"
#include "transport/shm/asymmetric_fence.hpp"
#include "transport/shm/init.hpp"
#include "transport/shm/memory.hpp"

#include <sys/types.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

namespace headway::comm {

/// Settings of an endpoint. All except `patience` must be equal on all ranks.
struct ShmSettings {
  std::size_t receive_buffer_bytes = 0;
  /// Size of one part of a receive buffer. The buffer holds one part per rank, in rank order. A rank puts only into
  /// its own part of a peer's buffer and maps no more of it. The parts of all ranks must fit into the buffer. 0: the
  /// whole buffer is one part that all ranks share.
  std::size_t part_bytes = 0;
  bool allow_get = true;        ///< True if ranks may read each other's user memory.
  SetupPatience patience = {};  ///< Deadline for connecting to the peers, and a callback during that wait.

  /// The range of each receive buffer that `rank` writes.
  [[nodiscard]] shm::ReceiveRange part_of(int rank) const {
    if (part_bytes == 0) return {.offset = 0, .bytes = receive_buffer_bytes};
    return {.offset = static_cast<std::size_t>(rank) * part_bytes, .bytes = part_bytes};
  }
};

/// Transport for peers on one host: every rank maps the memory files of all others and writes to them directly.
///
/// A put copies into the receiver's receive buffer and stores the tag in the next cell of the receiver's inbox for this
/// sender. A small message travels inside the cell, and the receiver's poll() copies it to its offset. There is no
/// system call unless the receiver sleeps. The algorithm is explained in endpoint.cpp, the overridden functions in
/// Endpoint.
class ShmEndpoint final : public Endpoint {
 public:
  /// Takes over the control sockets. A peer whose control socket has no descriptor belongs to another transport.
  ShmEndpoint(int rank, int size, std::vector<ControlSocket> control_sockets, ShmSettings const& settings);

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }
  [[nodiscard]] PeerTraits traits(int peer) const override;
  [[nodiscard]] std::span<std::byte> receive_buffer() override { return own_.receive_buffer(); }
  Status put(Destination const& destination, std::span<std::byte const> header, std::span<std::byte const> payload,
             Tag tag) override;
  void prepare(Destination const& destination, std::size_t header_bytes, std::size_t payload_bytes) override;
  void submit() override;
  [[nodiscard]] std::uint64_t put_count(int peer) const override { return outboxes_[index(peer)].num_put; }
  [[nodiscard]] std::uint64_t flushed(int peer) const override { return outboxes_[index(peer)].num_put; }
  bool poll(ArrivalSink& sink) override;
  Status get(int peer, std::uint64_t address, std::span<std::byte> local) override;
  bool claim(int owner, std::uint64_t offset, std::uint64_t value) override;
  void retract() noexcept override;
  bool open_window(int peer, WindowId window, std::span<std::byte> memory) override;
  void close_window(int peer, WindowId window) override;
  void send_oob(int peer, std::string_view text) noexcept override;
  void arm() override;
  void disarm() override;
  void sleep(Deadline deadline) override;
  void wake() noexcept override { bell_.ring(); }
  [[nodiscard]] int control_fd() const override { return control_sockets_.get(); }
  [[nodiscard]] int activity_fd() const override { return activity_.get(); }
  [[nodiscard]] HostShare host_share() const override;
  [[nodiscard]] bool receives_by_polling() const override { return false; }

 private:
  /// Sending side of one pair.
  struct Outbox {
    shm::Inbox* inbox = nullptr;  ///< Lies in the peer's memory file. Null if this transport does not reach the peer.
    std::span<std::byte> part;    ///< This rank's part of the peer's receive buffer.
    std::uint64_t num_put = 0, known_taken = 0;  ///< known_taken: last value read of Inbox::taken.
    bool has_unsubmitted = false;                ///< True if the peer is in unsubmitted_.

    [[nodiscard]] shm::Cell& next_cell() const { return inbox->cells[num_put % shm::kCells]; }
  };
  /// Receiving side of one pair.
  struct Source {
    int rank;
    shm::Inbox* inbox;
    std::span<std::byte> part;    ///< The source's part of the own receive buffer.
    std::uint64_t num_taken = 0;  ///< Notifications consumed. The next one is in cell num_taken mod kCells.

    [[nodiscard]] shm::Cell const& next_cell() const { return inbox->cells[num_taken % shm::kCells]; }
    [[nodiscard]] bool has_next() const {
      auto const word = next_cell().word.load(std::memory_order_acquire);  // Partner: put().
      return word >> 32 == static_cast<std::uint32_t>(num_taken + 1);
    }
  };

  [[nodiscard]] static std::size_t index(int peer) { return static_cast<std::size_t>(peer); }
  /// Prefetches the next cell of every source, and payloads of messages that have arrived.
  void fetch_arrivals() const;
  /// Reports all arrived notifications of `source`, then publishes how many were consumed.
  void take_cells(Source& source, ArrivalSink& sink);
  /// Copies the header and payload of a cell to their offset in `part`. Ignores cells with an invalid range.
  static void place_inline(shm::Cell const& cell, std::span<std::byte> part);
  /// Reports OOB messages and lost peers to `sink`. @returns whether it reported anything.
  bool check_control_sockets(ArrivalSink& sink);
  /// Stops watching the peer and reports its loss.
  void report_loss(int peer, std::string_view reason, ArrivalSink& sink);

  int rank_, size_;
  std::size_t part_offset_;  ///< Offset of this rank's part in every peer's receive buffer.
  std::vector<shm::PeerLink>
      links_;  ///< Initialised first, so that it owns the control sockets if a later member throws.
  shm::ReadPermission permission_;  ///< Granted before the peers probe whether they can read.
  shm::Region own_;
  Doorbell bell_;          ///< Wakes sleep(). Its descriptor goes to the peers, which ring it.
  AsymmetricFence fence_;  ///< Orders a message and the look whether its receiver sleeps.
  std::vector<Outbox> outboxes_;
  std::vector<Source> sources_;                      ///< In polling order: the next rank first.
  std::vector<int> unsubmitted_;                     ///< Peers with puts since the last submit().
  base::FileDescriptor control_sockets_, activity_;  ///< epoll descriptors. `activity_` adds the bell to the sockets.
  unsigned num_polls_ = 0;
  /// True if the last message taken had no payload in its cell. fetch_arrivals() expects the same of the next one.
  bool payloads_in_place_ = false;
  std::atomic<bool> control_is_ready_ = false;  ///< Set by sleep(), consumed by poll().
};

std::unique_ptr<Endpoint> make_shm_endpoint(int rank, int size, std::vector<ControlSocket> control_sockets,
                                            ShmSettings const& settings);

}  // namespace headway::comm
