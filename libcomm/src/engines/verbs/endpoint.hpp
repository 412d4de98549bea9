#pragma once

#include "engines/doorbell.hpp"
#include "engines/landing_memory.hpp"
#include "engines/notice_socket.hpp"
#include "engines/verbs/connection.hpp"
#include "engines/verbs/device.hpp"
#include "engines/verbs/queue_pair_table.hpp"
#include "engines/verbs/staging_ring.hpp"
#include "file_descriptor.hpp"
#include "headway/comm/endpoint.hpp"
#include "rendezvous/lifeline.hpp"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace headway::comm {

/// Peers over RDMA: a put is an RDMA WRITE_WITH_IMM whose immediate is the tag, on a reliable connection to each peer.
///
/// Each notification takes one receive of the queue that all peers share. A sender has kCredits of them; the receiver
/// tells it how many it has taken by writing a count into its memory, so the queue never runs dry.
class VerbsEndpoint final : public Endpoint {
 public:
  /// Takes over the descriptors of `lifelines`; peers without one are left to another engine. `landing` must outlive
  /// the endpoint. Landing segments of all ranks have one size.
  VerbsEndpoint(int rank, int size, std::vector<Lifeline> const& lifelines, std::span<std::byte> landing,
                verbs::Address address);
  /// The same with landing memory of its own.
  VerbsEndpoint(int rank, int size, std::vector<Lifeline> const& lifelines, std::unique_ptr<LandingMemory> memory,
                verbs::Address address);
  /// Waits up to a second until the peers' devices have what was put.
  ~VerbsEndpoint() override;

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }
  [[nodiscard]] PeerTraits traits(int peer) const override;
  [[nodiscard]] std::span<std::byte> landing() override { return landing_; }
  Status put(Destination const& destination, std::span<std::byte const> header, std::span<std::byte const> payload,
             Tag tag) override;
  void submit() override;
  [[nodiscard]] std::uint64_t put_count(int peer) const override { return links_[index(peer)].num_put; }
  [[nodiscard]] std::uint64_t flushed(int peer) const override { return links_[index(peer)].num_flushed(); }
  bool poll(ArrivalSink& sink) override;
  Status get(int peer, std::uint64_t address, std::span<std::byte> local) override;
  bool claim(int owner, std::uint64_t offset, std::uint64_t value) override;
  void retract() noexcept override {}  // Nobody can read here.
  void expose(int peer, SegmentId segment, std::span<std::byte> memory) override;
  void withdraw(int /*peer*/, SegmentId /*segment*/) override {}
  void send_notice(int peer, std::string_view text) noexcept override;
  void arm() override;
  void disarm() override { bell_.disarm(); }
  void sleep(Deadline deadline) override;
  void wake() noexcept override { bell_.ring(); }
  [[nodiscard]] int lifeline_fd() const override { return lifelines_.get(); }
  [[nodiscard]] int activity_fd() const override { return activity_.get(); }
  [[nodiscard]] HostShare host_share() const override { return {}; }
  [[nodiscard]] bool lands_by_polling() const override { return false; }

  /// Where the queue pairs are.
  [[nodiscard]] verbs::Address const& address() const { return address_; }

 private:
  /// A write that is not posted yet. The pieces lie in registered memory.
  struct Request {
    ibv_send_wr work;
    std::array<ibv_sge, 2> pieces;
  };
  /// What becomes free when the device says that it is through with request `number`.
  struct Unreclaimed {
    std::uint64_t number;
    std::uint64_t staging_position;
    std::uint64_t put_count;           ///< Of the put whose payload the device reads; 0: its payload was copied.
    verbs::MemoryRegion registration;  ///< Of that payload.
  };
  struct Link {
    NoticeSocket socket;
    verbs::QueuePair queue_pair;  ///< Null: not a peer of this engine, or lost.
    verbs::Hello remote{};
    bool is_peer = false, is_lost = false;
    std::string loss;  ///< Why nothing goes to it any more; the peer counts as lost once its notices are read.

    std::uint64_t num_put = 0, num_taken = 0;  ///< Taken by the peer: as it was when last looked at.
    std::uint64_t num_requests = 0, num_reclaimed = 0, num_at_signal = 0;
    std::uint64_t staging_at_signal = 0;
    verbs::StagingRing staging;
    std::vector<Request> requests;  ///< The first num_unposted are not posted yet; the others are used again.
    std::size_t num_unposted = 0;
    std::deque<Unreclaimed> unreclaimed;
    std::size_t num_in_place = 0;  ///< Of those, puts whose payload the device reads.

    std::uint64_t num_arrived = 0, num_reported = 0;

    [[nodiscard]] std::uint64_t num_flushed() const;
  };

  [[nodiscard]] static std::size_t index(int peer) { return static_cast<std::size_t>(peer); }
  [[nodiscard]] bool is_peer(int peer) const { return peer >= 0 && peer < size_ && links_[index(peer)].is_peer; }
  /// Whether a put may go: there are a credit and a request.
  [[nodiscard]] bool has_room(Link& to, int peer) const;
  /// Puts with a payload that is read in place.
  Status put_in_place(Link& to, int peer, std::uint64_t remote_address, std::span<std::byte const> lead,
                      std::span<std::byte const> payload, Tag tag);
  void take_over(std::vector<Lifeline> const& lifelines);
  void make_queues();
  void connect_peers();
  void watch_descriptors();
  /// @returns an errno value.
  int post_receives(std::size_t count);
  [[nodiscard]] Status lost_status(int peer) const;
  static void add_piece(Request& request, std::span<std::byte const> piece, std::uint32_t key) {
    request.pieces[static_cast<std::size_t>(request.work.num_sge++)] = {
        .addr = reinterpret_cast<std::uintptr_t>(piece.data()),
        .length = static_cast<std::uint32_t>(piece.size()),
        .lkey = key};
  }
  /// Adds a write to what submit() posts. The device may read `pieces` until the request is reclaimed.
  [[gnu::always_inline]] inline Request& add_request(Link& to, int peer, std::uint64_t remote_address,
                                                     std::uint32_t remote_key);
  [[gnu::always_inline]] inline Request& add_put(Link& to, int peer, std::uint64_t remote_address, Tag tag);
  /// Asks for a completion of the newest request: it tells of all requests before it.
  void signal(Link& to, Request& request);
  /// A write of how much of a peer's notifications was taken, after the receives are posted again. Null: no room now.
  Request* add_credits(Link& to, int peer);
  void post(Link& to, int peer);
  bool take_completions(ArrivalSink* sink);
  [[gnu::always_inline]] inline void take_arrival(Link& from, int peer, std::uint32_t packed_tag, ArrivalSink* sink);
  void post_taken_receives();
  void reclaim(Link& of, std::uint64_t number);
  /// Tells peers that are owed at least `minimum`.
  void report_credits(std::uint64_t minimum);
  void break_link(Link& link, std::string reason);
  bool check_lifelines(ArrivalSink& sink);
  void report_loss(int peer, std::string const& reason, ArrivalSink& sink);
  void linger() noexcept;

  int rank_, size_;
  verbs::Address address_;
  std::unique_ptr<LandingMemory> own_memory_;
  std::span<std::byte> landing_;
  LandingMemory credit_memory_, staging_memory_;
  verbs::Context context_;
  verbs::ProtectionDomain domain_;
  verbs::MemoryRegion landing_region_, credit_region_, staging_region_;
  verbs::CompletionChannel channel_;
  verbs::CompletionQueue completions_;
  verbs::SharedReceiveQueue receives_;
  std::uint32_t inline_bytes_ = 0;
  std::vector<Link> links_;
  verbs::QueuePairTable peer_of_queue_pair_;
  std::vector<int> unsubmitted_;
  std::vector<int> owed_credits_;       ///< Peers of whom kCreditsPerReport notifications were taken.
  std::size_t num_receives_taken_ = 0;  ///< And not posted again yet.
  bool has_broken_links_ = false;
  Doorbell bell_;
  FileDescriptor lifelines_, activity_;  ///< epoll; the second nests the first, the completion channel and the bell.
  unsigned num_polls_ = 0;
  std::atomic<bool> lifeline_is_ready_ = false;  ///< Set by sleep(), acted upon by poll().
};

std::unique_ptr<Endpoint> make_verbs_endpoint(int rank, int size, std::vector<Lifeline> const& lifelines,
                                              std::size_t landing_bytes, verbs::Address address);

}  // namespace headway::comm
