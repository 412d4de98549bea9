#pragma once

#include "engines/doorbell.hpp"
#include "engines/landing_memory.hpp"
#include "engines/notice_socket.hpp"
#include "engines/verbs/connection.hpp"
#include "engines/verbs/device.hpp"
#include "engines/verbs/mailbox.hpp"
#include "engines/verbs/queue_pair_table.hpp"
#include "engines/verbs/rail.hpp"
#include "engines/verbs/registrations.hpp"
#include "file_descriptor.hpp"
#include "headway/comm/endpoint.hpp"
#include "rendezvous/lifeline.hpp"

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

struct Settings {
  Address address;
  int num_rails = 1;            ///< Queue pairs to each peer, 1 to kMaxRails.
  std::size_t cache_bytes = 0;  ///< Memory of allocate() that stays registered.
  SetupPatience patience = {};  ///< While connections are made.
};

}  // namespace verbs

/// Peers over RDMA: a put is an RDMA WRITE_WITH_IMM whose immediate is the tag, on a reliable connection to each peer.
///
/// Each notification takes one receive of the queue that all peers share. A sender has a share of them; the receiver
/// tells it how many it has taken by writing a count into its mailbox, so the queue never runs dry.
///
/// With several queue pairs (rails) to a peer, puts take turns. What must not be overtaken goes on the first: credits,
/// windows, and the notifications without bytes that tell of windows.
class VerbsEndpoint final : public Endpoint {
 public:
  /// Takes over the descriptors of `lifelines`; peers without one are left to another engine. `landing` must outlive
  /// the endpoint. Landing segments of all ranks have one size.
  VerbsEndpoint(int rank, int size, std::vector<Lifeline> lifelines, std::span<std::byte> landing,
                verbs::Settings settings);
  /// The same with landing memory of its own.
  VerbsEndpoint(int rank, int size, std::vector<Lifeline> lifelines, std::unique_ptr<LandingMemory> memory,
                verbs::Settings settings);
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
  [[nodiscard]] std::uint64_t flushed(int peer) const override;
  bool poll(ArrivalSink& sink) override;
  Status get(int peer, std::uint64_t address, std::span<std::byte> local) override;
  bool claim(int owner, std::uint64_t offset, std::uint64_t value) override;
  void retract() noexcept override;
  bool expose(int peer, SegmentId segment, std::span<std::byte> memory) override;
  void withdraw(int peer, SegmentId segment) override;
  [[nodiscard]] bool wants_keep_alive() const override { return true; }
  void keep_alive() override;
  void send_notice(int peer, std::string_view text) noexcept override;
  void arm() override;
  void disarm() override { bell_.disarm(); }
  void sleep(Deadline deadline) override;
  void wake() noexcept override { bell_.ring(); }
  [[nodiscard]] int lifeline_fd() const override { return lifelines_.get(); }
  [[nodiscard]] int activity_fd() const override { return activity_.get(); }
  [[nodiscard]] HostShare host_share() const override;
  [[nodiscard]] bool lands_by_polling() const override { return false; }

  /// Where the queue pairs are.
  [[nodiscard]] verbs::Address const& address() const { return settings_.address; }
  /// Notifications that each peer may have under way to this rank.
  [[nodiscard]] std::uint64_t credits() const { return credits_; }

 private:
  static constexpr int kCompletionsPerCall = 32;
  using Completions = std::array<ibv_wc, kCompletionsPerCall>;
  /// A segment that a peer may write to.
  struct Exposed {
    SegmentId segment = kLandingSegment;
    verbs::Registration registration;  ///< Null: none.
  };
  struct Link {
    NoticeSocket socket;
    std::vector<verbs::Rail> rails;  ///< Empty: not a peer of this engine, or lost.
    std::size_t next_rail = 0;
    verbs::Hello remote{};
    bool is_peer = false, is_lost = false, shares_host = false;
    bool is_unsubmitted = false;  ///< Among those with something to post.
    std::string loss;  ///< Why nothing goes to it any more; the peer counts as lost once its notices are read.
    Clock::time_point loss_is_due;
    std::array<Exposed, verbs::kWindows> exposed;

    std::uint64_t num_put = 0, num_taken = 0;  ///< Taken by the peer: as it was when last looked at.
    std::uint64_t num_arrived = 0, num_reported = 0;

    [[nodiscard]] bool is_out() const {
      return std::ranges::all_of(rails, [](auto const& rail) { return rail.is_out(); });
    }
  };

  [[nodiscard]] static std::size_t index(int peer) { return static_cast<std::size_t>(peer); }
  [[nodiscard]] bool is_peer(int peer) const { return peer >= 0 && peer < size_ && links_[index(peer)].is_peer; }
  [[nodiscard]] verbs::Mailbox& mailbox_of(int peer) {
    return reinterpret_cast<verbs::Mailbox*>(mailbox_memory_.bytes().data())[peer];
  }
  /// Whether the peer has a receive for one more notification.
  [[nodiscard]] bool has_credit(Link& to, int peer);
  [[nodiscard]] verbs::Rail& take_rail(Link& to, bool carries_bytes) {
    if (!carries_bytes || to.rails.size() == 1) return to.rails.front();
    to.next_rail = to.next_rail + 1 < to.rails.size() ? to.next_rail + 1 : 0;
    return to.rails[to.next_rail];
  }
  /// Where a put with a header or not goes. @throws UsageError if it leaves the segment.
  [[gnu::always_inline]] inline verbs::RemoteMemory target_of(Destination const& destination, std::size_t header_bytes,
                                                              std::size_t payload_bytes);
  /// Gives up a peer whose payload can neither be copied nor registered.
  Status refuse_payload(Link& to, int peer, std::span<std::byte const> payload);
  void take_over(std::vector<Lifeline> lifelines);
  void make_queues();
  void make_rails(int peer, verbs::Hello& hello);
  void connect_peers();
  void watch_descriptors();
  /// @returns an errno value.
  int post_receives(std::size_t count);
  [[nodiscard]] Status lost_status(int peer) const;
  /// A write that submit() posts; the pieces are still to come.
  [[gnu::always_inline]] verbs::Request& add_write(Link& to, int peer, verbs::Rail& rail,
                                                   verbs::RemoteMemory const& target) {
    if (!std::exchange(to.is_unsubmitted, true)) unsubmitted_.push_back(peer);
    return rail.add_write(target);
  }
  [[gnu::always_inline]] inline verbs::Request& add_put(Link& to, int peer, verbs::Rail& rail,
                                                        verbs::RemoteMemory const& target, Tag tag);
  /// Writes `bytes` into the peer's mailbox. Null: no room now.
  verbs::Request* add_mail(Link& to, int peer, std::size_t offset, std::span<std::byte const> bytes);
  /// Writes how much of a peer's notifications was taken, after the receives are posted again. Null: no room now.
  verbs::Request* add_credits(Link& to, int peer);
  void post(Link& to, int peer);
  [[nodiscard]] bool wants_lifeline_check() const;
  bool take_completions(ArrivalSink* sink);
  /// @returns whether there was any.
  bool take(Completions const& done, int count, ArrivalSink* sink);
  [[gnu::always_inline]] inline void take_arrival(Link& from, int peer, std::uint32_t packed_tag, ArrivalSink* sink);
  void connection_failed(Link& link, ibv_wc_status status);
  void post_taken_receives();
  /// Tells peers that are owed at least `minimum`.
  void report_credits(std::uint64_t minimum);
  /// Nothing goes to the peer any more. `patience`: how long it may still say itself what happened.
  void break_link(Link& link, std::string reason, Clock::duration patience = {});
  bool check_lifelines(ArrivalSink& sink);
  void report_loss(int peer, std::string const& reason, ArrivalSink& sink);
  void linger() noexcept;

  int rank_, size_;
  verbs::Settings settings_;
  std::unique_ptr<LandingMemory> own_memory_;
  std::span<std::byte> landing_;
  LandingMemory mailbox_memory_, staging_memory_;
  verbs::Context context_;
  verbs::ProtectionDomain domain_;
  verbs::MemoryRegion landing_region_, mailbox_region_, staging_region_;
  verbs::Registrations registrations_;
  verbs::CompletionChannel channel_;
  verbs::CompletionQueue completions_;
  verbs::SharedReceiveQueue receives_;
  std::uint32_t inline_bytes_ = 0;
  std::uint64_t credits_ = 0;
  std::vector<Link> links_;
  verbs::QueuePairTable owner_of_queue_pair_;
  std::vector<int> unsubmitted_;
  std::vector<int> owed_credits_;       ///< Peers of whom half their notifications were taken.
  std::size_t num_receives_taken_ = 0;  ///< And not posted again yet.
  bool has_broken_links_ = false;
  bool may_break_ = false;  ///< What connections were using was retracted.
  Clock::time_point next_keep_alive_{};
  Doorbell bell_;
  FileDescriptor lifelines_, activity_;  ///< epoll; the second nests the first, the completion channel and the bell.
  unsigned num_polls_ = 0;
  std::atomic<bool> lifeline_is_ready_ = false;  ///< Set by sleep(), acted upon by poll().
};

std::unique_ptr<Endpoint> make_verbs_endpoint(int rank, int size, std::vector<Lifeline> lifelines,
                                              std::size_t landing_bytes, verbs::Settings settings);

}  // namespace headway::comm
