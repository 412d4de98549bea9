#pragma once

#include "engines/nvlink/layout.hpp"
#include "engines/nvlink/memory.hpp"

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace headway::comm::nvlink {

/// One side of what two ranks share: host and device memory for what comes from the other, and the state of each
/// channel. Fragments of a channel are numbered from 0 in each direction.
///
/// Between hosts two ranks share nothing: all of a remote link is memory of this host, and a Relay takes the peer's
/// part. Streams find there what they find in a link inside a host, but that slots are memory of the host.
class Link {
 public:
  struct Channel {
    std::uint64_t messages_sent = 0, messages_expected = 0;
    std::uint64_t fragments_sent = 0, fragments_received = 0;
    CUstream sender = nullptr, receiver = nullptr;  ///< The streams that did so last; null: none yet.
  };

  /// A remote link.
  Link(std::shared_ptr<Context const> context, LinkLayout const& layout);
  /// Makes this side, whose slots are in `segment`.
  Link(std::shared_ptr<Context const> context, LinkLayout const& layout, std::shared_ptr<SharedSegment> segment,
       int rank, int peer);

  /// Descriptors of this side, for the peer: host memory, device memory.
  [[nodiscard]] std::array<int, 2> descriptors() const { return {shared_host_.get(), segment_->descriptor.get()}; }
  /// Maps the peer's side.
  void map_peer(std::array<FileDescriptor, 2> descriptors);
  /// Whether the peer's device is this one, so that every copy to it is one inside a device.
  bool shares_device = false;
  [[nodiscard]] bool is_remote() const { return segment_ == nullptr; }

  [[nodiscard]] ChannelLayout const& layout(int channel) const { return layout_.of(channel); }
  [[nodiscard]] Channel& channel(int channel) { return channels_[index(channel)]; }
  /// Of this side: for what comes.
  [[nodiscard]] Board& board(int channel) const { return board_in(host_, channel); }
  [[nodiscard]] CUdeviceptr word(int channel, BoardWord word) const { return word_in(host_, channel, word); }
  [[nodiscard]] CUdeviceptr stage(int channel, std::uint64_t fragment) const {
    return host_.address() + layout(channel).stage_offset(fragment);
  }
  [[nodiscard]] CUdeviceptr slot(int channel, std::uint64_t fragment) const {
    return slots_ + layout(channel).slot_offset(fragment);
  }
  /// Of the peer's side: for what goes.
  [[nodiscard]] Board& peer_board(int channel) const { return board_in(peer_host_, channel); }
  [[nodiscard]] CUdeviceptr peer_word(int channel, BoardWord word) const { return word_in(peer_host_, channel, word); }
  [[nodiscard]] CUdeviceptr peer_stage(int channel, std::uint64_t fragment) const {
    return peer_host_.address() + layout(channel).stage_offset(fragment);
  }
  [[nodiscard]] CUdeviceptr peer_slot(int channel, std::uint64_t fragment) const {
    return peer_slots_ + layout(channel).slot_offset(fragment);
  }
  /// Of a remote link: all of it, for a CPU.
  [[nodiscard]] RemoteMemory const& remote_memory() const { return remote_; }

  /// Lets waits for this peer pass, now and later, and tells it so first. Thread-safe; calls no driver. The peer's
  /// stream may still write a word that was under way, so it is to be called again from time to time.
  void release_waits() const noexcept;
  /// The same of those for its outputs to be ready, which its streams write themselves while it lives: until then it
  /// may use them for something else.
  void release_outputs() const noexcept;
  /// Whether the peer did that, so that what came from it may have been overwritten.
  [[nodiscard]] bool peer_has_failed() const { return board(0).peer_failed.load(std::memory_order_acquire) != 0; }

 private:
  static std::size_t index(int channel) { return static_cast<std::size_t>(channel); }
  [[nodiscard]] Board& board_in(HostSegment const& host, int channel) const {
    return *reinterpret_cast<Board*>(host.data() + layout(channel).board_offset);
  }
  /// Where the device sees it.
  [[nodiscard]] CUdeviceptr word_in(HostSegment const& host, int channel, BoardWord word) const {
    auto const* const here = reinterpret_cast<std::byte const*>(&(board_in(host, channel).*word));
    return host.address() + static_cast<std::size_t>(here - host.data());
  }

  std::shared_ptr<Context const> context_;
  LinkLayout layout_;
  std::size_t own_offset_ = 0;  ///< Of this rank in a segment of the peer that sources share.
  FileDescriptor shared_host_;
  HostSegment host_, peer_host_;
  std::shared_ptr<SharedSegment> segment_;
  DeviceSegment peer_device_;
  CUdeviceptr slots_ = 0, peer_slots_ = 0;
  RemoteMemory remote_;
  std::vector<Channel> channels_;
};

}  // namespace headway::comm::nvlink
