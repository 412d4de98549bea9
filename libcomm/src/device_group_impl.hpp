#pragma once

#include "device_operation.hpp"
#include "engines/nvlink/introductions.hpp"
#include "engines/nvlink/link.hpp"
#include "engines/nvlink/offered_memory.hpp"
#include "engines/nvlink/relay.hpp"
#include "engines/nvlink/streams.hpp"
#include "flight_recorder.hpp"
#include "group_companion.hpp"
#include "headway/comm/device_group.hpp"
#include "message_header.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace headway::comm {

/// The device group behind DeviceGroup::make(): a link to each peer, and the streams that carry fragments over them.
///
/// A fragment goes so: the sender's stream waits until its slot is free (a count of consumed fragments that the
/// receiver's stream writes), copies, and writes the count of arrived fragments; the receiver's stream waits for that,
/// copies the fragment out, and writes what it has consumed. All words are in host memory, so that a CPU can watch
/// them, and let every wait pass when the group has failed.
///
/// A large block whose output the sender can reach (nvlink::OfferedMemory) is copied there at once, if its host knows
/// where that is when it comes to it. Its fragments are counted, though it is not cut.
///
/// Lock order: the group's lock, then watch_mutex_. mutex_ is held while operations are enqueued, which may block in
/// the driver; it comes before both, and nothing that must end such a wait takes it.
class DeviceGroupImpl final : public DeviceGroup, private GroupCompanion {
 public:
  DeviceGroupImpl(Group& group, DeviceOptions const& options);
  ~DeviceGroupImpl() override;

  [[nodiscard]] int ordinal() const override { return context_->ordinal(); }
  DeviceOperationPtr all_to_all_v(AllToAllArgs const& args, DeviceCall const& call) override;
  DeviceOperationPtr broadcast(std::span<std::byte> block, int root, DataType type, DeviceCall const& call) override;
  DeviceOperationPtr gather(std::span<std::byte const> block, std::span<std::span<std::byte> const> receives, int root,
                            DataType type, DeviceCall const& call) override;
  DeviceOperationPtr scatter(std::span<std::span<std::byte const> const> sends, std::span<std::byte> block, int root,
                             DataType type, DeviceCall const& call) override;
  DeviceOperationPtr all_gather(std::span<std::byte const> block, std::span<std::span<std::byte> const> receives,
                                DataType type, DeviceCall const& call) override;
  DeviceOperationPtr send(std::span<std::byte const> block, int peer, std::uint64_t match, DataType type,
                          DeviceCall const& call) override;
  DeviceOperationPtr receive(std::span<std::byte> block, int peer, std::uint64_t match, DataType type,
                             DeviceCall const& call) override;
  [[nodiscard]] std::unique_ptr<DeviceSlots> make_slots(DeviceSlotsOptions const& options) override;
  [[nodiscard]] DeviceStats stats() override;

 private:
  friend class DeviceSlotsImpl;

  /// The links to all peers that share a layout.
  struct LinkSet {
    int number;                                        ///< Alike on all ranks.
    nvlink::LinkLayout layout, remote_layout{};        ///< The second of links between hosts; empty: there may be none.
    nvlink::Hello hello{};                             ///< What this rank says of it to all peers.
    std::shared_ptr<nvlink::SharedSegment> segment{};  ///< Of all links; null: each has one.
    std::vector<std::shared_ptr<nvlink::Link>> offered{}, links{};  ///< (size) This rank's side; those of both.
  };
  struct Channel {
    LinkSet* set;
    int index;  ///< In the layout of the links.
    std::size_t most_lag = 0;
    std::uint64_t num_operations = 0;
    /// (size) Streams that send. Channels share none: of two channels that ranks use in different order, one may have
    /// to wait for room.
    std::vector<std::unique_ptr<nvlink::Stream>> lanes{};
    /// Streams that receive: one, or one for each peer where messages have no order.
    std::vector<std::unique_ptr<nvlink::Stream>> receivers{};
    /// Tells peers what they may write, after leases or the start of an operation: so neither a lane nor a receiver.
    std::unique_ptr<nvlink::Stream> credits{};
    std::deque<std::shared_ptr<CUevent_st>> completions{};  ///< Of the latest operations, as far as a bound reaches.
  };
  /// What goes to a peer or comes from it.
  struct Block {
    int peer;
    CUdeviceptr address;
    std::size_t num_bytes;
    std::uint64_t message = 0;  ///< Its number in the channel, among those to the peer or from it.
    std::uint64_t first_fragment = 0, num_fragments = 0, num_enqueued = 0;
    nvlink::Way way = nvlink::Way::kSlots;
    CUdeviceptr output = 0;  ///< Of what goes directly.

    [[nodiscard]] std::uint64_t end_fragment() const { return first_fragment + num_fragments; }
    [[nodiscard]] std::uint64_t next_fragment() const { return first_fragment + num_enqueued; }
  };
  struct Exchange {
    Verb verb;
    Channel* channel;
    DataType type;
    std::uint64_t match;
    int peer;  ///< The root, or the other side of a message; else -1.
    Deadline deadline;
    bool is_in_slots;  ///< Blocks stay in the slot where they land.
    std::vector<Block> sends, receives;
    std::span<std::byte const> own_source;
    std::span<std::byte> own_output;
  };

  // GroupCompanion
  [[nodiscard]] bool is_late(Clock::time_point now) override;
  [[nodiscard]] bool needs(int peer) override;
  [[nodiscard]] std::string describe_missing() override;
  void append_flights(FlightClock::Reading const& clock, std::vector<FlightRecord>& records) override;
  void heard(int peer, std::string_view text) override;
  void group_failed(Status const& failure) noexcept override;

  // device_handshake.cpp
  [[nodiscard]] nvlink::Hello own_hello(LinkSet const& set) const;
  /// Tells all peers of this rank and its memory, without waiting for any.
  void introduce(LinkSet& set);
  void offer_link(LinkSet& set, int peer);
  /// Waits until the peer has introduced itself, as one with the same layout.
  [[nodiscard]] nvlink::Hello await_hello(LinkSet const& set, int peer, Deadline deadline);
  /// Waits for the memory of all peers of an exchange that were not met yet. They need only have introduced theirs.
  void meet_peers(Exchange const& exchange);
  void meet(LinkSet& set, int peer, Deadline deadline);
  /// For a set that all ranks make at the same time: all peers or, where it throws, none.
  void meet_all(LinkSet& set);
  [[nodiscard]] std::shared_ptr<nvlink::Link> meet_on_this_host(LinkSet& set, int peer, nvlink::Hello const& theirs,
                                                                Deadline deadline);
  void forget_links(LinkSet const& set);

  [[nodiscard]] Channel& ring(int index) { return channels_[static_cast<std::size_t>(index)]; }
  [[nodiscard]] Channel& collectives() { return ring(group_.options().num_channels); }
  [[nodiscard]] Channel& messages() { return ring(group_.options().num_channels + 1); }
  void new_exchange(Verb verb, Channel& channel, DataType type, std::uint64_t match, int peer = -1);
  void new_collective(Verb verb, DataType type, int root = -1) {
    new_exchange(verb, collectives(), type, collectives().num_operations, root);
  }
  void expect_one_for_each(std::size_t count, char const* what) const;
  void expect_root(int root, char const* what) const;
  void expect_peer(int peer, char const* what) const;
  void add_send(std::span<std::byte const> block, int peer);
  void add_receive(std::span<std::byte> block, int peer);

  // device_start.cpp
  /// Starts exchange_. `max_lag`: none for messages, which wait for each other at their peer only.
  DeviceOperationPtr start(std::optional<int> max_lag, DeviceCall const& call);
  [[nodiscard]] PairFlight new_flight();
  void number_fragments(DeviceOperationImpl& operation);
  [[nodiscard]] nvlink::MessageMeaning meaning_of(Block const& block) const;
  /// Tells the relay what the streams will want of it.
  void hand_to_relay();
  void note_messages();
  void note(nvlink::Board& board, bool is_send, Block const& block);
  /// Whether a block may be copied into the output by its sender, as both ranks see it.
  [[nodiscard]] bool may_go_directly(Block const& block) const;
  void offer_output(nvlink::Board& board, Block& block);
  void choose_ways();
  void wait_for_room(nvlink::Board const& board, bool is_send, std::uint64_t number, int peer);

  // device_enqueue.cpp
  [[nodiscard]] bool fits_one_stream() const;
  void enqueue(CUstream user, std::optional<int> max_lag, DeviceOperationImpl& operation);
  void enqueue_on_one_stream(CUevent start, std::optional<int> max_lag, DeviceOperationImpl& operation);
  void enqueue_on_lanes(CUevent start, std::optional<int> max_lag, DeviceOperationImpl& operation);
  /// Adds copies, and words to write after them; what must be waited for before is enqueued.
  void add_whole_sends(CUstream stream);
  /// Adds words to wait for, and copies to make after them.
  void add_whole_receives();
  /// Tells peers that they may write into outputs.
  void open_outputs(CUevent start, std::optional<int> max_lag);
  /// Calls `enqueue` with each of the blocks in turn, until all their fragments are enqueued.
  template <class Enqueue>
  static void in_turns(std::vector<Block>& blocks, Enqueue enqueue);
  /// What one copy takes of the next fragments, as one part.
  void send_fragments(Block& block, CUstream stream);
  void receive_fragments(Block& block, CUstream stream);
  /// The number of the first of these fragments, and what they hold; counts them as enqueued.
  [[nodiscard]] std::pair<std::uint64_t, nvlink::BlockPart> next_run(Block& block);
  void send_directly(Block& block, CUstream stream);
  /// Where a fragment lands at the peer, or here.
  [[nodiscard]] CUdeviceptr landing_at_peer(Block const& block, std::uint64_t fragment);
  [[nodiscard]] CUdeviceptr landing(Block const& block, std::uint64_t fragment);
  [[nodiscard]] bool is_staged(Block const& block) const;
  void await_room(Block const& block, std::uint64_t fragment);
  /// Adds a word that says that fragments from `first` to `end` are consumed, where that is to be said of one of them.
  void give_credit(Block const& block, std::uint64_t first, std::uint64_t end);
  void copy_own(CUstream stream);
  void after_event(CUstream stream, CUevent event);
  void after_stream(CUstream stream, CUstream earlier);
  /// Lets `stream` go on, in order, with what `last` did so far.
  void take_over(CUstream& last, CUstream stream);
  void after_bound(CUstream stream, std::optional<int> max_lag);
  void count_local_copy(std::size_t num_bytes);
  /// The streams of the exchange's channel on which blocks go to `peer`, and come from it.
  [[nodiscard]] CUstream lane(int peer);
  [[nodiscard]] CUstream receiver(int peer);
  [[nodiscard]] CUstream stream_at(std::vector<std::unique_ptr<nvlink::Stream>>& streams, std::size_t at) const;
  [[nodiscard]] CUdeviceptr own_stage() const;

  [[nodiscard]] nvlink::ChannelLayout const& layout(int peer) const {
    return link(peer).layout(exchange_.channel->index);
  }
  [[nodiscard]] nvlink::Link& link(int peer) const {
    return *exchange_.channel->set->links[static_cast<std::size_t>(peer)];
  }
  [[nodiscard]] nvlink::Link::Channel& state(int peer) { return link(peer).channel(exchange_.channel->index); }
  [[nodiscard]] bool is_of_messages() const {
    return exchange_.channel == &channels_[static_cast<std::size_t>(group_.options().num_channels) + 1];
  }
  [[nodiscard]] bool has_failed() const { return failure_->is_set.load(std::memory_order_acquire); }
  void throw_if_failed() const;
  /// Looks anew.
  void throw_if_unhealthy();
  void refuse_capture(CUstream stream) const;
  void forget_completed();
  void note_failed_records();
  /// Of one channel, or of all where that is null.
  [[nodiscard]] bool is_idle(Channel const* channel) noexcept;
  void drain(Channel const* channel) noexcept;

  Group& group_;
  DeviceOptions const options_;
  int const rank_, size_;
  std::shared_ptr<nvlink::Context const> context_;

  std::mutex mutex_;  ///< Guards what follows, up to watch_mutex_.
  LinkSet links_;
  int num_link_sets_ = 1;
  std::deque<Channel> channels_;    ///< Of all-to-alls, then of collectives, of messages, and of slots.
  nvlink::HostSegment own_stages_;  ///< A stage for each channel that is not of slots.
  std::shared_ptr<nvlink::EventPool> events_;
  Exchange exchange_{};  ///< Scratch, as the next two.
  nvlink::WordBatch words_;
  nvlink::CopyBatch copies_;
  DeviceStats stats_;

  nvlink::Introductions introductions_;
  nvlink::OfferedMemory offered_memory_;

  std::unique_ptr<nvlink::Relay> relay_;  ///< Null: all peers met so far are on this host.

  std::mutex watch_mutex_;  ///< Guards what follows; never held during a call of the driver.
  std::deque<std::shared_ptr<DeviceOperationImpl>> pending_;
  FlightRecorder flight_recorder_;
  std::vector<FlightRecord> failed_records_;
  Clock::time_point failed_at_{};
  std::vector<std::shared_ptr<nvlink::Link const>> met_;
  std::shared_ptr<DeviceFailure> failure_ = std::make_shared<DeviceFailure>();
};

}  // namespace headway::comm
