#pragma once

#include "data_type_text.hpp"
#include "message_header.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

namespace headway::comm::nvlink {

/// What a rank means by a message, in which its sender and its receiver must agree.
struct MessageMeaning {
  std::uint64_t size_bytes = 0;
  std::uint64_t match = 0;  ///< The tag of a send, or the number of an all-to-all or collective.
  std::uint16_t data_type = 0;
  Verb verb{};
  std::array<std::uint8_t, 5> unused{};  ///< It is sent as it is.

  friend bool operator==(MessageMeaning const&, MessageMeaning const&) = default;
};

static_assert(std::has_unique_object_representations_v<MessageMeaning>);

/// The error of two ranks that do not.
[[nodiscard]] std::string disagreement(DataTypeName name, int sender, MessageMeaning const& sent, int receiver,
                                       MessageMeaning const& expected);

/// What a host says of one message, at its start. The sender and the receiver each write theirs into the receiver's
/// board and then read the other's, so that at least one of them sees both.
struct MessageNote {
  std::atomic<std::uint64_t> number_plus_1;  ///< Of the message in its channel and direction; written last.
  MessageMeaning meaning;
};

/// A part of a segment of device memory that its owner has offered to a peer.
struct MemoryPlace {
  std::uint64_t segment = 0;  ///< Counted from 1 in the order of the offers; 0: there is none.
  std::uint64_t segment_bytes = 0, offset = 0;
};

/// How a large block goes.
enum class Way : std::uint64_t {
  kSlots,     ///< In fragments: the sender's streams copy them into slots, the receiver's out of them.
  kDirectly,  ///< The sender's streams copy it into the output.
};

/// The way of one message, which is chosen by whichever of two hosts comes to it first: directly by a receiver that has
/// a place for it, through slots by a sender, which does not know one yet. So neither has to wait for the other.
class Placement {
 public:
  /// Written by the receiver before it chooses.
  MemoryPlace place;

  /// For message `number`. @returns what holds: `own`, or what the other has chosen.
  Way choose(std::uint64_t number, Way own);
  /// Whether anybody has chosen.
  [[nodiscard]] bool is_chosen(std::uint64_t number) const { return word_.load() / kNumWays == number + 1; }

 private:
  static constexpr std::uint64_t kNumWays = 2;

  std::atomic<std::uint64_t> word_;  ///< The latest message's number plus 1, and its way in the lowest bit.
};

/// The part of one channel in the host memory that a rank shares with one peer. The peer's stream writes the words.
struct Board {
  static constexpr std::size_t kNumNotes = 128;

  alignas(128) std::atomic<std::uint64_t> arrived;   ///< Fragments that have come from the peer.
  alignas(128) std::atomic<std::uint64_t> consumed;  ///< Fragments to the peer that it needs no more, at least.
  alignas(128) std::atomic<std::uint64_t> ready;     ///< Messages to the peer up to which its outputs may be written.
  alignas(
      128) std::atomic<std::uint32_t> peer_failed;  ///< In the first channel's: the peer's waits pass, come what may.
  std::atomic<bool> has_places;                     ///< Whether the owner had a place for the latest large block.
  alignas(128) std::array<MessageNote, kNumNotes> sent;      ///< Of messages from the peer, by the peer.
  alignas(128) std::array<MessageNote, kNumNotes> expected;  ///< Of the same messages, by the owner.
  alignas(128) std::array<Placement, kNumNotes> placements;  ///< Of the same messages, by both.
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

/// One of those that streams wait for.
using BoardWord = std::atomic<std::uint64_t> Board::*;

/// A word with this value lets every wait pass: streams compare cyclically, and nobody counts this far.
inline constexpr std::uint64_t kReleased = std::uint64_t{1} << 62;

/// Fragments up to this size take the way through a stage in host memory: the copies to and from it need no
/// multiprocessor, as those inside a device do, and are started in a third of the time.
inline constexpr std::size_t kStageBytes = 64 * 1024;

/// A receiver says what it has consumed when that has passed a multiple of this, so it owes a sender the credit for
/// fewer fragments.
inline constexpr std::uint64_t kCreditStep = 4;

/// A part of a block.
struct BlockPart {
  std::size_t offset, num_bytes;
};

/// How one channel cuts its messages, and where its slots are. Alike on all ranks.
struct ChannelLayout {
  std::size_t slot_bytes = 0;
  std::uint64_t num_slots = 0;
  std::size_t board_offset = 0;  ///< In the host segment: the board, then `num_slots` stages.
  std::size_t slots_offset = 0;  ///< In the device segment.
  std::size_t slot_stride = 0;   ///< From one slot to the next: more than slot_bytes where all sources share them.

  [[nodiscard]] std::size_t stage_offset(std::uint64_t fragment) const {
    return board_offset + sizeof(Board) + fragment % num_slots * kStageBytes;
  }
  [[nodiscard]] std::size_t slot_offset(std::uint64_t fragment) const {
    return slots_offset + fragment % num_slots * slot_stride;
  }
  [[nodiscard]] std::uint64_t num_fragments(std::size_t block_bytes) const {
    return std::max<std::uint64_t>((block_bytes + slot_bytes - 1) / slot_bytes, 1);
  }
  /// How many of a block's `count` fragments one copy takes from fragment `index` on, which lies in the slot of the
  /// channel's fragment `first + index`. Several, as a copy and the word after it cost 8 us of a lane besides the
  /// bytes; but at most half of the block, and half of the slots, so that one is copied out while the next comes.
  [[nodiscard]] std::uint64_t run(std::uint64_t count, std::uint64_t first, std::uint64_t index) const {
    std::uint64_t const half = std::min((count + 1) / 2, std::max<std::uint64_t>(num_slots / 2, 1));
    return std::min({half, count - index, num_slots - (first + index) % num_slots});
  }
  /// What the `run` fragments from `index` on hold, of the `count` that a block is cut into.
  [[nodiscard]] BlockPart part(std::size_t block_bytes, std::uint64_t count, std::uint64_t index,
                               std::uint64_t run = 1) const {
    if (count == 1) return {.offset = 0, .num_bytes = block_bytes};
    std::size_t const offset = index * slot_bytes;
    return {.offset = offset, .num_bytes = std::min(run * slot_bytes, block_bytes - offset)};
  }
};

/// Where all channels of a link are: alike on all ranks of a group.
struct LinkLayout {
  std::vector<ChannelLayout> channels;
  std::size_t host_bytes = 0, device_bytes = 0;
  std::size_t source_stride = 0;  ///< In the device segment, from one source to the next, if they share one.

  void add_channel(std::size_t slot_bytes, std::uint64_t num_slots);
  [[nodiscard]] ChannelLayout const& of(int channel) const { return channels[static_cast<std::size_t>(channel)]; }
  /// One channel, whose slots hold a fragment of each of `size` sources side by side.
  static LinkLayout of_shared_slots(std::size_t block_bytes, std::uint64_t num_slots, int size);
};

/// What two ranks on different hosts have in place of shared memory, each on its own host: the board, stages and slots
/// for what comes, and the same again for what goes, which the peer's would be if it were here.
struct RemoteMemory {
  LinkLayout layout;
  std::byte* incoming = nullptr;  ///< total_bytes() each; zero at first.
  std::byte* outgoing = nullptr;

  [[nodiscard]] static std::size_t total_bytes(LinkLayout const& layout) {
    return layout.host_bytes + layout.device_bytes;
  }
  /// Says what has come, and which slots for what goes are free: for this rank's streams.
  [[nodiscard]] Board& board(int channel) const { return at(incoming, channel); }
  /// Says what is ready to go, and what of that which came is consumed: by this rank's streams.
  [[nodiscard]] Board& stream_board(int channel) const { return at(outgoing, channel); }
  /// Where a fragment lies, in a slot or in its stage.
  [[nodiscard]] std::byte* fragment(bool comes, int channel, std::uint64_t number, bool is_staged) const {
    auto const& of_channel = layout.of(channel);
    std::size_t const offset =
        is_staged ? of_channel.stage_offset(number) : layout.host_bytes + of_channel.slot_offset(number);
    return (comes ? incoming : outgoing) + offset;
  }

 private:
  [[nodiscard]] Board& at(std::byte* memory, int channel) const {
    return *reinterpret_cast<Board*>(memory + layout.of(channel).board_offset);
  }
};

}  // namespace headway::comm::nvlink
