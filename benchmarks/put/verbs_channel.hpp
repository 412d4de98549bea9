// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "message_channel.hpp"

#include <headway/comm/store.hpp>

#include <infiniband/verbs.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace headway::benchmarks {

/// Device, port and GID of the queue pairs; the same on both ranks.
struct VerbsAddress {
  std::string device;
  std::uint8_t port;
  std::uint8_t gid_index;
};

/// MessageChannel over libibverbs alone: one reliable connection, RDMA WRITE_WITH_IMM, inline up to 256 bytes, and
/// one completion queue that is polled. It has no credits, so a turn must not send more than kReceives messages.
class VerbsChannel final : public MessageChannel {
 public:
  static constexpr std::uint32_t kReceives = 1024;  ///< Receives that are posted at once.

  /// Connects to the other one of two ranks, which must do the same. A message has at most `max_bytes`. `store` passes
  /// the connection data. @throws std::system_error naming the call.
  VerbsChannel(int rank, VerbsAddress const& address, std::size_t max_bytes, comm::Store& store);

  [[nodiscard]] std::span<std::byte> source() override { return source_; }
  void send(std::size_t size_bytes) override;
  void flush() override;
  void wait_for(std::uint64_t count) override;
  [[nodiscard]] std::span<std::byte> slot(std::uint64_t seq) override;

 private:
  /// Connection data that the ranks exchange through the store.
  struct ConnectionInfo {
    std::uint64_t address;                 ///< Virtual address of the receive slots.
    std::uint32_t key, queue_pair_number;  ///< rkey and QP number.
    ibv_gid gid;
    std::uint16_t lid;
  };
  /// Object of libibverbs with the function that destroys it.
  template <typename Object>
  using Owned = std::unique_ptr<Object, int (*)(Object*)>;

  /// Creates the protection domain, memory regions, completion queue and queue pair.
  void make_queues();
  /// Moves the queue pair to RTS towards `peer`.
  void connect(VerbsAddress const& address, ConnectionInfo const& own, ConnectionInfo const& peer, ibv_mtu mtu);
  /// Posts `count` receives, a multiple of 16: they are posted in batches of 16.
  void post_receives(std::uint32_t count);
  /// Takes completions: arrivals, and sends that are done.
  void poll();

  std::vector<std::byte> receive_buffer_;  ///< kSlots slots; message i is written into slot i % kSlots.
  std::vector<std::byte> source_;
  Owned<ibv_context> context_{nullptr, ibv_close_device};
  Owned<ibv_pd> domain_{nullptr, ibv_dealloc_pd};
  Owned<ibv_mr> receive_region_{nullptr, ibv_dereg_mr}, source_region_{nullptr, ibv_dereg_mr};
  Owned<ibv_cq> completions_{nullptr, ibv_destroy_cq};
  Owned<ibv_qp> queue_pair_{nullptr, ibv_destroy_qp};
  ConnectionInfo peer_{};
  std::size_t slot_bytes_;  ///< Distance of two receive slots.
  std::uint64_t num_sent_ = 0, num_arrived_ = 0;
  std::uint64_t num_acknowledged_ = 0;    ///< Requests up to this number are complete.
  std::uint32_t num_receives_taken_ = 0;  ///< Consumed receives that are not posted again yet.
};

}  // namespace headway::benchmarks
