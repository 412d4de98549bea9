// SPDX-License-Identifier: Apache-2.0

// Layout of the memory that two ranks of a host share, for each channel: control words (SyncWords), stages for small
// blocks, and slots for the fragments of larger ones.
//
//   host segment:    [sync words of channel 0 | its stages] [sync words of channel 1 | its stages] ...  (page-aligned)
//   device segment:  [slots of channel 0] [slots of channel 1] ...
//
// Each rank owns one pair of segments per peer, for incoming data; the peer maps both. All offsets follow from the
// options, so ranks compare only the totals when they meet.
//
// Example: a channel with slots of 8 MiB and a block of 20 MiB. The block has 3 fragments of 8, 8 and 4 MiB. If the
// channel has sent 6 fragments before and has 8 slots, they use slots 6, 7 and 0. A block of 10 KB in its place is
// one fragment and goes through stage 6, in host memory.
//
// Invariant: fragment f of a direction uses slot f modulo num_slots and stage f modulo num_slots, so one count says
// which slots are free.

#pragma once

#include "channel/message_header.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

namespace headway::comm::peer_copy {

/// Properties of a message on which its sender and its receiver must agree.
struct MessageDescriptor {
  std::uint64_t size_bytes = 0;
  std::uint64_t match = 0;  ///< Tag of a send, or number of an all-to-all or other collective.
  std::uint16_t data_type = 0;
  Verb verb{};
  std::array<std::uint8_t, 5> unused{};  ///< Explicit padding: the struct is sent as raw bytes.

  friend bool operator==(MessageDescriptor const&, MessageDescriptor const&) = default;
};

static_assert(std::has_unique_object_representations_v<MessageDescriptor>);

/// Error text for a sender and a receiver that disagree.
[[nodiscard]] std::string disagreement(DataTypeName name, int sender, MessageDescriptor const& sent, int receiver,
                                       MessageDescriptor const& expected);

/// Descriptor of one message, written by a host when it starts. The sender and the receiver each write theirs into the
/// receiver's sync words and then read the other's. So at least one of them sees both.
struct DescriptorSlot {
  std::atomic<std::uint64_t> seq_plus_1;  ///< Message number in its channel and direction, plus 1. Written last.
  MessageDescriptor descriptor;
};

/// A range of device memory that its owner has exported to a peer.
struct WindowRange {
  std::uint64_t segment = 0;  ///< Number of the segment in the order of exports, from 1; 0 means none.
  std::uint64_t segment_bytes = 0, offset = 0;
};

/// Route of a block that is larger than a stage.
enum class Route : std::uint64_t {
  kSlots,     ///< In fragments: the sender's streams copy into slots, the receiver's streams out of them.
  kDirectly,  ///< The sender's streams copy directly into the output.
};

/// Agreement of two hosts on the route of one message: whichever comes first chooses. A receiver chooses kDirectly if
/// it has a window for the block; a sender, which does not know that window yet, chooses kSlots. So neither waits for
/// the other.
class RouteChoice {
 public:
  /// Written by the receiver before it calls choose().
  WindowRange range;

  /// Chooses a route for message `seq`. @returns the route that holds: `own`, or the one that the other side chose.
  Route choose(std::uint64_t seq, Route own);
  /// True if either side has chosen.
  [[nodiscard]] bool is_chosen(std::uint64_t seq) const { return word_.load() / kNumRoutes == seq + 1; }

 private:
  static constexpr std::uint64_t kNumRoutes = 2;

  std::atomic<std::uint64_t> word_;  ///< Latest message number + 1, shifted left by one; the lowest bit is its Route.
};

/// One channel's control words in the host memory that a rank shares with one peer. The peer's stream writes the
/// words. Only counters that grow are used, so a wait is "at least".
///
/// Each word that a stream polls has 128 bytes for itself: writes to a neighbour would take the cache line away from
/// the reader, and processors fetch lines in pairs.
struct SyncWords {
  static constexpr std::size_t kNumDescriptors = 128;

  alignas(128) std::atomic<std::uint64_t> arrived;   ///< Fragments that have arrived from the peer.
  alignas(128) std::atomic<std::uint64_t> consumed;  ///< Lower bound of the fragments to the peer that it has consumed.
  alignas(128) std::atomic<std::uint64_t> ready;     ///< Number of messages to the peer whose outputs may be written.
  alignas(128) std::atomic<std::uint32_t> peer_failed;  ///< Used in channel 0 only: nonzero if the peer has failed and
                                                        ///< lets all its waits pass.
  std::atomic<bool> has_windows;                        ///< True if the owner had a window for the latest large block.
  alignas(
      128) std::array<DescriptorSlot, kNumDescriptors> sent;  ///< Messages from the peer, as the peer describes them.
  alignas(128) std::array<DescriptorSlot, kNumDescriptors> expected;  ///< The same messages, as the owner expects them.
  alignas(
      128) std::array<RouteChoice, kNumDescriptors> route_choices;  ///< Routes of the same messages, chosen by both.
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

/// A sync word that streams wait for.
using SyncWord = std::atomic<std::uint64_t> SyncWords::*;

/// Releases every wait: streams compare cyclically (GEQ), and no count reaches this value.
inline constexpr std::uint64_t kReleased = std::uint64_t{1} << 62;

/// Fragments up to this size go through a stage in host memory. Copies to and from it need no multiprocessor, unlike
/// copies inside a device, and start in a third of the time.
inline constexpr std::size_t kStageBytes = 64 * 1024;

/// A receiver writes its consumed count when it passes a multiple of this. So it withholds credit for fewer fragments
/// than this.
inline constexpr std::uint64_t kCreditStep = 4;

/// A byte range of a block.
struct BlockPart {
  std::size_t offset, num_bytes;
};

/// Fragment size and slot addresses of one channel. Equal on all ranks.
struct ChannelLayout {
  std::size_t slot_bytes = 0;
  std::uint64_t num_slots = 0;
  std::size_t sync_offset = 0;   ///< In the host segment: the sync words, followed by `num_slots` stages.
  std::size_t slots_offset = 0;  ///< Offset in the device segment.
  /// Bytes from one slot to the next. Larger than slot_bytes if all sources share the slots.
  std::size_t slot_stride = 0;

  [[nodiscard]] std::size_t stage_offset(std::uint64_t fragment) const {
    return sync_offset + sizeof(SyncWords) + fragment % num_slots * kStageBytes;
  }
  [[nodiscard]] std::size_t slot_offset(std::uint64_t fragment) const {
    return slots_offset + fragment % num_slots * slot_stride;
  }
  [[nodiscard]] std::uint64_t num_fragments(std::size_t block_bytes) const {
    return std::max<std::uint64_t>((block_bytes + slot_bytes - 1) / slot_bytes, 1);
  }
  /// Number of fragments that one copy takes from fragment `index` of a block of `count` fragments. Fragment `index`
  /// lies in the slot of the channel's fragment `first + index`.
  /// A copy and the word after it take 8 us of a stream besides the bytes, so one copy takes several fragments that are
  /// contiguous in the ring. It takes at most half of the block and half of the slots, so that one run is copied out
  /// while the next arrives.
  /// Example: count 8, 8 slots, first 6, index 0: min(4, 8, 2) = 2, because the ring wraps after slot 7.
  [[nodiscard]] std::uint64_t run(std::uint64_t count, std::uint64_t first, std::uint64_t index) const {
    std::uint64_t const half = std::min((count + 1) / 2, std::max<std::uint64_t>(num_slots / 2, 1));
    return std::min({half, count - index, num_slots - (first + index) % num_slots});
  }
  /// Byte range of `run` fragments from `index` on, of a block cut into `count` fragments.
  [[nodiscard]] BlockPart part(std::size_t block_bytes, std::uint64_t count, std::uint64_t index,
                               std::uint64_t run = 1) const {
    if (count == 1) return {.offset = 0, .num_bytes = block_bytes};
    std::size_t const offset = index * slot_bytes;
    return {.offset = offset, .num_bytes = std::min(run * slot_bytes, block_bytes - offset)};
  }
};

/// Offsets of all channels of a link. Equal on all ranks of a group.
struct LinkLayout {
  std::vector<ChannelLayout> channels;
  std::size_t host_bytes = 0, device_bytes = 0;
  /// Bytes from one source to the next in the device segment, if sources share it; else 0.
  std::size_t source_stride = 0;

  /// Appends a channel: its sync words and stages to the host segment, its slots to the device segment.
  void add_channel(std::size_t slot_bytes, std::uint64_t num_slots);
  [[nodiscard]] ChannelLayout const& of(int channel) const { return channels[static_cast<std::size_t>(channel)]; }
  /// Layout of one channel in which each slot holds one fragment of each of `size` sources, side by side.
  static LinkLayout of_shared_slots(std::size_t block_bytes, std::uint64_t num_slots, int size);
};

/// Memory of a remote link, in place of memory shared with a peer on another host. Each rank has both halves on its own
/// host: sync words, stages and slots for incoming data, and the same for outgoing data in place of the peer's.
struct RemoteMemory {
  LinkLayout layout;
  std::byte* incoming = nullptr;  ///< total_bytes() each; zero at first.
  std::byte* outgoing = nullptr;

  [[nodiscard]] static std::size_t total_bytes(LinkLayout const& layout) {
    return layout.host_bytes + layout.device_bytes;
  }
  /// Words for this rank's streams: what has arrived, and which outgoing slots are free.
  [[nodiscard]] SyncWords& sync_words(int channel) const { return at(incoming, channel); }
  /// Words from this rank's streams: what is ready to send, and what incoming data they have consumed.
  [[nodiscard]] SyncWords& stream_sync_words(int channel) const { return at(outgoing, channel); }
  /// Address of fragment `seq`, in its slot or its stage.
  [[nodiscard]] std::byte* fragment(bool is_incoming, int channel, std::uint64_t seq, bool is_staged) const {
    auto const& of_channel = layout.of(channel);
    std::size_t const offset =
        is_staged ? of_channel.stage_offset(seq) : layout.host_bytes + of_channel.slot_offset(seq);
    return (is_incoming ? incoming : outgoing) + offset;
  }

 private:
  [[nodiscard]] SyncWords& at(std::byte* memory, int channel) const {
    return *reinterpret_cast<SyncWords*>(memory + layout.of(channel).sync_offset);
  }
};

}  // namespace headway::comm::peer_copy
