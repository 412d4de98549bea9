// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "channel/message_header.hpp"
#include "device/device_operation.hpp"
#include "device/peer_copy/exported_memory.hpp"
#include "device/peer_copy/host_proxy.hpp"
#include "device/peer_copy/ipc_exchange.hpp"
#include "device/peer_copy/link.hpp"
#include "device/peer_copy/streams.hpp"
#include "headway/comm/device_group.hpp"
#include "observe/flight_recorder.hpp"
#include "observe/group_observer.hpp"

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

/// The device group behind DeviceGroup::make(): a link to each peer, and streams that carry fragments over the links.
///
/// Path of a fragment: the sender's stream waits until the slot is free, copies the fragment, and writes the count of
/// arrived fragments. The receiver's stream waits for that count, copies the fragment out, and writes the count of
/// consumed fragments, for which the sender's stream waits. These words are in host memory, so a CPU can watch them,
/// and can release every wait when the group has failed.
///
/// A large block is copied at once into an output that the sender has mapped (peer_copy::ExportedMemory), if the
/// sender's host learns in time where that is. It is then not cut, but its fragments are counted all the same.
///
/// Lock order: mutex_, the group's lock, watch_mutex_. mutex_ is held while operations are enqueued, which may block in
/// the driver. Code that must end such a wait takes only the other two.
class DeviceGroupImpl final : public DeviceGroup, private GroupObserver {
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

  /// The links to all peers that share one layout.
  struct LinkSet {
    int index;  ///< Index of the set, the same on all ranks.
    /// remote_layout is for links between hosts; without channels, the set has none.
    peer_copy::LinkLayout layout, remote_layout{};
    peer_copy::Hello hello{};  ///< Description of this rank's memory, sent to all peers.
    std::shared_ptr<peer_copy::SharedSegment>
        segment{};  ///< Segment that all links share; null: each link has its own.
    /// (size) Links whose memory this rank has exported to the peer, and links that are ready for use.
    std::vector<std::shared_ptr<peer_copy::Link>> exported{}, links{};
  };
  /// A sequence of operations with its own streams: an all-to-all channel, the collectives, the messages (sends and
  /// receives), or slots.
  struct Channel {
    LinkSet* set;
    int index;  ///< Index in the layout of the links.
    /// Largest max_lag: max_lag_limit + 1 completions are kept.
    std::size_t max_lag_limit = 0;
    /// Operations started so far: the number of the next one.
    std::uint64_t num_operations = 0;
    /// Streams that send: one to peers on this host, one to those on others; for messages, which have no common order,
    /// one per peer. Channels share none: of two channels that ranks use in different order, one may have to wait.
    std::vector<std::unique_ptr<peer_copy::Stream>> senders{};
    /// Streams that receive: one, or one per peer for messages, which have no common order.
    std::vector<std::unique_ptr<peer_copy::Stream>> receivers{};
    /// Stream that tells peers what they may overwrite: it waits until a lease of DeviceSlots is over or an operation
    /// may start, then writes a word. Streams with copies must not wait for that.
    std::unique_ptr<peer_copy::Stream> credits{};
    std::deque<std::shared_ptr<CUevent_st>> completions{};  ///< Completions of the latest operations, oldest first.
  };
  /// A block to or from one peer.
  struct Block {
    int peer;
    CUdeviceptr address;
    std::size_t num_bytes;
    std::uint64_t message = 0;  ///< Message number in the channel, counted per peer and direction.
    /// Fragments are numbered per channel, peer and direction. `num_enqueued` of this block's are on a stream.
    std::uint64_t first_fragment = 0, num_fragments = 0, num_enqueued = 0;
    peer_copy::Route route = peer_copy::Route::kSlots;
    CUdeviceptr output = 0;  ///< Output at the peer, if `route` is kDirectly.

    [[nodiscard]] std::uint64_t end_fragment() const { return first_fragment + num_fragments; }
    [[nodiscard]] std::uint64_t next_fragment() const { return first_fragment + num_enqueued; }
  };
  /// The operation that is being started.
  struct Exchange {
    Verb verb;
    Channel* channel;
    DataType type;
    std::uint64_t match;
    int peer;  ///< Root of a collective, or the other rank of a message; else -1.
    Deadline deadline;
    bool is_in_slots;  ///< Exchange of DeviceSlots: received blocks stay in the slot that they arrive in.
    std::vector<Block> sends, receives;
    std::span<std::byte const> own_source;
    std::span<std::byte> own_output;
  };

  // GroupObserver
  [[nodiscard]] bool is_late(Clock::time_point now) override;
  [[nodiscard]] bool needs(int peer) override;
  [[nodiscard]] std::string describe_missing() override;
  void append_flights(FlightClock::Reading const& clock, std::vector<FlightRecord>& records) override;
  void on_oob(int peer, std::string_view text) override;
  void group_failed(Status const& failure) noexcept override;

  // device_handshake.cpp
  [[nodiscard]] peer_copy::Hello own_hello(LinkSet const& set) const;
  /// Sends this rank's hello to all peers, and exports its memory to those on this host. Waits for none.
  void run_bootstrap(LinkSet& set);
  /// Makes this rank's side of a link and exports it to `peer`.
  void export_link(LinkSet& set, int peer);
  /// Waits for the hello of `peer`. @throws UsageError if its layout or host does not fit.
  [[nodiscard]] peer_copy::Hello await_hello(LinkSet const& set, int peer, Deadline deadline);
  /// Meets all peers of an exchange that were not met yet: makes the links to them usable. These need only have called
  /// run_bootstrap().
  void meet_peers(Exchange const& exchange);
  /// Makes the link to `peer` usable. A failure aborts the group.
  void meet(LinkSet& set, int peer, Deadline deadline);
  /// Meets all peers of a set that all ranks make at the same time. If it throws, no link is kept.
  void meet_all(LinkSet& set);
  [[nodiscard]] std::shared_ptr<peer_copy::Link> meet_on_this_host(LinkSet& set, int peer,
                                                                   peer_copy::Hello const& theirs, Deadline deadline);
  /// Stops watching the links of a set that goes away.
  void forget_links(LinkSet const& set);

  /// Channels, in this order: all-to-alls, collectives, messages, slots.
  [[nodiscard]] Channel& channel_at(int index) { return channels_[static_cast<std::size_t>(index)]; }
  [[nodiscard]] Channel& collectives() { return channel_at(group_.options().num_channels); }
  [[nodiscard]] Channel& messages() { return channel_at(group_.options().num_channels + 1); }
  /// Resets exchange_ for a new operation.
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
  /// Starts exchange_. `max_lag` is empty for messages, which only wait for their peer.
  DeviceOperationPtr start(std::optional<int> max_lag, DeviceCall const& call);
  /// Flight record of exchange_; takes its operation number.
  [[nodiscard]] P2PFlight new_flight();
  /// Numbers the fragments of all blocks, and tells `operation` which words it waits for.
  void number_fragments(DeviceOperationImpl& operation);
  /// Properties of a message on which both ranks must agree.
  [[nodiscard]] peer_copy::MessageDescriptor descriptor_of(Block const& block) const;
  /// Hands the blocks to peers on other hosts to the proxy.
  void hand_to_proxy();
  /// Writes a descriptor of each message into the sync words, and compares it with the peer's descriptor. A mismatch
  /// aborts the group.
  void exchange_descriptors();
  void exchange_descriptor(peer_copy::SyncWords& sync_words, bool is_send, Block const& block);
  /// May the sender copy the block directly into the output? Both ranks get the same answer.
  [[nodiscard]] bool may_go_directly(Block const& block) const;
  /// Exports the output of `block` to its sender, if it is in memory that peers can map.
  void export_output(peer_copy::SyncWords& sync_words, Block& block);
  /// Decides for each block to send: through slots, or directly into the output.
  void choose_routes();
  /// Blocks until the descriptor that message `seq` overwrites is no longer needed.
  void wait_for_room(peer_copy::SyncWords const& sync_words, bool is_send, std::uint64_t seq, int peer);

  // device_enqueue.cpp
  /// Is the operation small enough for one stream (two with max_lag above 0)?
  [[nodiscard]] bool fits_one_stream() const;
  void enqueue(CUstream user, std::optional<int> max_lag, DeviceOperationImpl& operation);
  void enqueue_on_one_stream(CUevent start, std::optional<int> max_lag, DeviceOperationImpl& operation);
  void enqueue_large(CUevent start, std::optional<int> max_lag, DeviceOperationImpl& operation);
  /// Adds copies of whole blocks, and the words to write after them. Enqueues the waits that must come before.
  void add_whole_sends(CUstream stream);
  /// Adds the words to wait for, and the copies out of slots after them.
  void add_whole_receives();
  /// Enqueues words that allow peers to write into outputs.
  void open_outputs(CUevent start, std::optional<int> max_lag);
  /// Calls `enqueue` with each block in turn, until all fragments of all blocks are enqueued.
  template <class Enqueue>
  static void in_turns(std::vector<Block>& blocks, Enqueue enqueue);
  /// Enqueue the next run of fragments of a block: as many as one copy takes.
  void send_fragments(Block& block, CUstream stream);
  void receive_fragments(Block& block, CUstream stream);
  /// Number of the first fragment of the next run, and the run's part of the block. Counts the run as enqueued.
  [[nodiscard]] std::pair<std::uint64_t, peer_copy::BlockPart> next_run(Block& block);
  void send_directly(Block& block, CUstream stream);
  /// Address of a fragment's slot or stage, at the peer and here.
  [[nodiscard]] CUdeviceptr peer_receive_address(Block const& block, std::uint64_t fragment);
  [[nodiscard]] CUdeviceptr receive_address(Block const& block, std::uint64_t fragment);
  /// Is the block small enough for a stage in host memory? Its copies then use no multiprocessor.
  [[nodiscard]] bool is_staged(Block const& block) const;
  /// Adds a wait for a free slot, unless the CPU already sees it free.
  void await_room(Block const& block, std::uint64_t fragment);
  /// Adds the word that reports fragments `first` to `end` - 1 as consumed, if one of them completes a credit step.
  void give_credit(Block const& block, std::uint64_t first, std::uint64_t end);
  /// Copies the block to the own rank.
  void copy_own(CUstream stream);
  /// Let `stream` wait for an event, or for all work so far of another stream.
  void after_event(CUstream stream, CUevent event);
  void after_stream(CUstream stream, CUstream earlier);
  /// Lets `stream` wait for what `last` did so far, then makes it the last stream.
  void take_over(CUstream& last, CUstream stream);
  /// Lets `stream` wait for operation t - max_lag - 1 of the channel.
  void after_bound(CUstream stream, std::optional<int> max_lag);
  void count_local_copy(std::size_t num_bytes);
  /// Stream of the exchange's channel that sends to `peer`, and the one that receives from it.
  [[nodiscard]] CUstream sender(int peer);
  [[nodiscard]] CUstream receiver(int peer);
  [[nodiscard]] CUstream stream_at(std::vector<std::unique_ptr<peer_copy::Stream>>& streams, std::size_t at) const;
  [[nodiscard]] CUdeviceptr own_stage() const;

  [[nodiscard]] peer_copy::ChannelLayout const& layout(int peer) const {
    return link(peer).layout(exchange_.channel->index);
  }
  [[nodiscard]] peer_copy::Link& link(int peer) const {
    return *exchange_.channel->set->links[static_cast<std::size_t>(peer)];
  }
  [[nodiscard]] peer_copy::Link::Channel& state(int peer) { return link(peer).channel(exchange_.channel->index); }
  /// Is the exchange a send or a receive?
  [[nodiscard]] bool is_of_messages() const {
    return exchange_.channel == &channels_[static_cast<std::size_t>(group_.options().num_channels) + 1];
  }
  [[nodiscard]] bool has_failed() const { return failure_->is_set.load(std::memory_order_acquire); }
  void throw_if_failed() const;
  /// Checks the health of the group now.
  void throw_if_unhealthy();
  /// Throws UsageError if `stream` is being captured into a CUDA graph.
  void refuse_capture(CUstream stream) const;
  /// Drops pending operations from the front whose data has arrived. Needs watch_mutex_.
  void forget_completed();
  /// Keeps the flight records of pending operations for append_flights(), before the failure drops these. Needs
  /// watch_mutex_.
  void keep_failed_records();
  /// Are the streams of one channel, or of all if null, idle?
  [[nodiscard]] bool is_idle(Channel const* channel) noexcept;
  /// Waits until they are idle; after a failure for a limited time.
  void drain(Channel const* channel) noexcept;

  Group& group_;
  DeviceOptions const options_;
  int const rank_, size_;
  std::shared_ptr<peer_copy::Context const> context_;

  std::mutex mutex_;  ///< Guards the members below, up to watch_mutex_.
  LinkSet links_;
  int num_link_sets_ = 1;
  std::deque<Channel> channels_;       ///< All-to-alls, then collectives, messages, and slots.
  peer_copy::HostSegment own_stages_;  ///< One stage per channel, except slots, for the block to the own rank.
  std::shared_ptr<peer_copy::EventPool> events_;
  Exchange exchange_{};  ///< Scratch of the operation being started, like the next two.
  peer_copy::WordBatch words_;
  peer_copy::CopyBatch copies_;
  DeviceStats stats_;

  peer_copy::IpcExchange ipc_exchange_;
  peer_copy::ExportedMemory exported_memory_;

  std::unique_ptr<peer_copy::HostProxy> proxy_;  ///< Null: no peer on another host was met yet.

  std::mutex watch_mutex_;  ///< Guards the members below. Never held during a driver call.
  /// Operations whose data has not all arrived, oldest first.
  std::deque<std::shared_ptr<DeviceOperationImpl>> pending_;
  FlightRecorder flight_recorder_;
  std::vector<FlightRecord> failed_records_;
  /// When the group failed; the epoch: it has not.
  Clock::time_point failed_at_{};
  /// All links in use, for group_failed().
  std::vector<std::shared_ptr<peer_copy::Link const>> met_;
  /// Failure of the group; shared with operations that outlive it.
  std::shared_ptr<DeviceFailure> failure_ = std::make_shared<DeviceFailure>();
};

}  // namespace headway::comm
