// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bootstrap/control_socket.hpp"
#include "headway/base/file_descriptor.hpp"
#include "headway/comm/endpoint.hpp"
#include "system/anonymous_mapping.hpp"
#include "transport/doorbell.hpp"
#include "transport/oob_socket.hpp"
#include "transport/verbs/connection.hpp"
#include "transport/verbs/device.hpp"
#include "transport/verbs/limits.hpp"
#include "transport/verbs/queue_pair_table.hpp"
#include "transport/verbs/rail.hpp"
#include "transport/verbs/registrations.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace headway::comm {

namespace verbs {

/// Address and key of a window that a rank has opened to a peer.
struct Window {
  std::uint64_t address;
  std::uint64_t size;
  WindowId id;
  std::uint32_t key;
};

/// Control memory that one peer writes with plain RDMA writes, which consume no receive.
struct Mailbox {
  alignas(64) std::uint64_t num_taken;  ///< Notifications of the mailbox's owner that the peer has consumed.
  /// The window with number `id` is at index id mod kWindows. A window is written before the notification that
  /// announces it, on the same queue pair.
  alignas(64) std::array<Window, kWindows> windows;
};

struct Settings {
  Address address;
  int num_rails = 1;            ///< Queue pairs to each peer, 1 to kMaxRails.
  std::size_t cache_bytes = 0;  ///< Limit of the registration cache for memory of allocate().
  SetupPatience patience = {};  ///< Used while connections are made.
};

}  // namespace verbs

/// RDMA transport: a put is an RDMA WRITE_WITH_IMM whose immediate is the tag, on a reliable connection to each peer.
///
/// Each notification consumes one receive of the queue that all peers share. Each sender has a share of them (credits);
/// the receiver writes its count of consumed notifications into the sender's mailbox, so the queue never runs dry.
///
/// With several queue pairs (rails) to a peer, puts take turns. Credits, windows and notifications without bytes always
/// use the first rail, because their order matters. The algorithm is explained in endpoint.cpp.
class VerbsEndpoint final : public Endpoint {
 public:
  /// Takes over the descriptors of `control_sockets`; a peer without one belongs to another transport. `receive_buffer`
  /// must outlive the endpoint. All ranks have receive buffers of one size.
  VerbsEndpoint(int rank, int size, std::vector<ControlSocket> control_sockets, std::span<std::byte> receive_buffer,
                verbs::Settings settings);
  /// Same as above, but owns its receive buffer.
  VerbsEndpoint(int rank, int size, std::vector<ControlSocket> control_sockets,
                std::unique_ptr<AnonymousMapping> memory, verbs::Settings settings);
  /// Waits up to a second until the peers' devices have acknowledged all puts.
  ~VerbsEndpoint() override;

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }
  [[nodiscard]] PeerTraits traits(int peer) const override;
  [[nodiscard]] std::span<std::byte> receive_buffer() override { return receive_buffer_; }
  Status put(Destination const& destination, std::span<std::byte const> header, std::span<std::byte const> payload,
             Tag tag) override;
  void submit() override;
  [[nodiscard]] std::uint64_t put_count(int peer) const override { return links_[index(peer)].num_put; }
  [[nodiscard]] std::uint64_t flushed(int peer) const override;
  bool poll(ArrivalSink& sink) override;
  Status get(int peer, std::uint64_t address, std::span<std::byte> local) override;
  bool claim(int owner, std::uint64_t offset, std::uint64_t value) override;
  void retract() noexcept override;
  bool open_window(int peer, WindowId id, std::span<std::byte> memory) override;
  void close_window(int peer, WindowId id) override;
  [[nodiscard]] bool wants_keep_alive() const override { return true; }
  void keep_alive() override;
  void send_oob(int peer, std::string_view text) noexcept override;
  void arm() override;
  void disarm() override { bell_.disarm(); }
  void sleep(Deadline deadline) override;
  void wake() noexcept override { bell_.ring(); }
  [[nodiscard]] int control_fd() const override { return control_sockets_.get(); }
  [[nodiscard]] int activity_fd() const override { return activity_.get(); }
  [[nodiscard]] HostShare host_share() const override;
  [[nodiscard]] bool receives_by_polling() const override { return false; }

  /// Address of the queue pairs.
  [[nodiscard]] verbs::Address const& address() const { return settings_.address; }
  /// Notifications that each peer may have in flight to this rank.
  [[nodiscard]] std::uint64_t credits() const { return credits_; }

 private:
  static constexpr int kCompletionsPerCall = 32;
  using Completions = std::array<ibv_wc, kCompletionsPerCall>;
  /// A window of this rank that is open to one peer.
  struct OwnWindow {
    WindowId id = kReceiveBuffer;
    verbs::Registration registration;  ///< Null if the entry is free.
  };
  struct Link {
    OobSocket socket;
    std::vector<verbs::Rail> rails;  ///< Empty if the peer is lost or belongs to another transport.
    std::size_t next_rail = 0;
    verbs::Hello remote{};
    bool is_peer = false;  ///< verbs reaches that rank; stays true when it is lost.
    bool is_lost = false, shares_host = false;
    bool is_unsubmitted = false;  ///< True if it is in unsubmitted_.
    std::string
        loss;  ///< Reason why nothing more is sent to it. The peer counts as lost once its OOB messages are read.
    Clock::time_point loss_is_due;  ///< When a loss is reported; until then an OOB message may tell the reason.
    std::array<OwnWindow, verbs::kWindows> own_windows;

    std::uint64_t num_put = 0, num_taken = 0;  ///< num_taken: the peer's consumed count at the last look.
    std::uint64_t num_arrived = 0,
                  num_reported = 0;  ///< Notifications from the peer, and the count last reported to it.

    /// True if the device has completed every request to this peer.
    [[nodiscard]] bool is_out() const {
      return std::ranges::all_of(rails, [](auto const& rail) { return rail.is_out(); });
    }
  };

  [[nodiscard]] static std::size_t index(int peer) { return static_cast<std::size_t>(peer); }
  [[nodiscard]] bool is_peer(int peer) const { return peer >= 0 && peer < size_ && links_[index(peer)].is_peer; }
  [[nodiscard]] verbs::Mailbox& mailbox_of(int peer) {
    return reinterpret_cast<verbs::Mailbox*>(mailbox_memory_.bytes().data())[peer];
  }
  /// True if the peer has a receive for one more notification.
  [[nodiscard]] bool has_credit(Link& to, int peer);
  /// The next rail in turn for a put with bytes, the first rail for one without.
  [[nodiscard]] verbs::Rail& take_rail(Link& to, bool carries_bytes) {
    if (!carries_bytes || to.rails.size() == 1) return to.rails.front();
    to.next_rail = to.next_rail + 1 < to.rails.size() ? to.next_rail + 1 : 0;
    return to.rails[to.next_rail];
  }
  /// Remote address and key for a put. @throws UsageError if it leaves the window or the receive buffer.
  [[gnu::always_inline]] inline verbs::RemoteMemory target_of(Destination const& destination, std::size_t header_bytes,
                                                              std::size_t payload_bytes);
  /// Gives up a peer because its payload can neither be copied nor registered.
  Status refuse_payload(Link& to, int peer, std::span<std::byte const> payload);
  void take_over(std::vector<ControlSocket> control_sockets);
  /// Registers library memory and creates the completion and receive queues. Sets credits_.
  void make_queues();
  /// Creates the queue pairs for `peer` and fills in the hello for it.
  void make_rails(int peer, verbs::Hello& hello);
  /// Exchanges hellos with all peers, connects all queue pairs, and waits until all peers have done so.
  void connect_peers();
  void watch_descriptors();
  /// Posts `count` receives. @returns an errno value, 0 on success.
  int post_receives(std::size_t count);
  [[nodiscard]] Status lost_status(int peer) const;
  /// Adds a write, still without pieces, that submit() posts.
  [[gnu::always_inline]] verbs::Request& add_write(Link& to, int peer, verbs::Rail& rail,
                                                   verbs::RemoteMemory const& target) {
    if (!std::exchange(to.is_unsubmitted, true)) unsubmitted_.push_back(peer);
    return rail.add_write(target);
  }
  /// Adds the write of a put, with its tag as the immediate. Counts it in num_put.
  [[gnu::always_inline]] inline verbs::Request& add_put(Link& to, int peer, verbs::Rail& rail,
                                                        verbs::RemoteMemory const& target, Tag tag);
  /// Writes `bytes` at `offset` of the peer's mailbox. Null if there is no room now.
  verbs::Request* add_mail(Link& to, int peer, std::size_t offset, std::span<std::byte const> bytes);
  /// Posts the consumed receives again, then writes their count to the peer. Null if there is no room now.
  verbs::Request* add_credits(Link& to, int peer);
  /// Posts the collected writes of all rails of the peer, and its credits if half of them are owed.
  void post(Link& to, int peer);
  [[nodiscard]] bool wants_control_check() const;
  /// Polls and processes completions, a bounded number. A null `sink` drops arrivals. @returns whether there were any.
  bool take_completions(ArrivalSink* sink);
  /// Processes completions. @returns whether there were any.
  bool take(Completions const& done, int count, ArrivalSink* sink);
  [[gnu::always_inline]] inline void take_arrival(Link& from, int peer, std::uint32_t packed_tag, ArrivalSink* sink);
  /// Handles a completion with an error: the connection is broken.
  void connection_failed(Link& link, ibv_wc_status status);
  /// Posts as many receives as were consumed since the last call.
  void post_taken_receives();
  /// Writes the count to each peer that is owed at least `minimum` credits.
  void report_credits(std::uint64_t minimum);
  /// Stops sending to the peer. Its loss is reported after `patience`, in which an OOB message may still tell the
  /// reason.
  void break_link(Link& link, std::string reason, Clock::duration patience = {});
  /// Reports OOB messages and due losses to `sink`. @returns whether it looked at the control sockets.
  bool check_control_sockets(ArrivalSink& sink);
  /// Destroys the peer's queue pairs and reports its loss.
  void report_loss(int peer, std::string const& reason, ArrivalSink& sink);
  /// Waits up to a second until the peers' devices have acknowledged all puts.
  void linger() noexcept;

  int rank_, size_;
  verbs::Settings settings_;
  std::unique_ptr<AnonymousMapping> own_memory_;
  std::span<std::byte> receive_buffer_;
  AnonymousMapping mailbox_memory_, staging_memory_;
  verbs::Context context_;
  verbs::ProtectionDomain domain_;
  verbs::MemoryRegion receive_region_, mailbox_region_, staging_region_;
  verbs::Registrations registrations_;
  verbs::CompletionChannel channel_;
  verbs::CompletionQueue completions_;
  verbs::SharedReceiveQueue receives_;
  std::uint32_t inline_bytes_ = 0;
  std::uint64_t credits_ = 0;
  std::vector<Link> links_;
  verbs::QueuePairTable owner_of_queue_pair_;
  std::vector<int> unsubmitted_;
  std::vector<int> owed_credits_;       ///< Peers owed at least half their credits.
  std::size_t num_receives_taken_ = 0;  ///< Consumed and not yet posted again.
  bool has_broken_links_ = false;
  bool may_break_ = false;  ///< True if retract() took memory that requests were using: failures are then expected.
  Clock::time_point next_keep_alive_{};
  Doorbell bell_;
  /// epoll descriptors. `activity_` nests `control_sockets_`, the completion channel and the bell.
  base::FileDescriptor control_sockets_, activity_;
  unsigned num_polls_ = 0;
  std::atomic<bool> control_is_ready_ = false;  ///< Set by sleep(), consumed by poll().
};

std::unique_ptr<Endpoint> make_verbs_endpoint(int rank, int size, std::vector<ControlSocket> control_sockets,
                                              std::size_t receive_buffer_bytes, verbs::Settings settings);

}  // namespace headway::comm
