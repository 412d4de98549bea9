// SPDX-License-Identifier: Apache-2.0

// Host proxy for CUDA exchanges between hosts: a thread that plays the peer of remote links.
//
// Idea: streams use a remote link (to a peer on another host) like one inside a host. The HostProxy watches the words
// that streams write and sends filled slots over the group; it receives into free slots and writes the words that
// streams wait for. It calls no driver function. Before the fragments of a message it sends the message's
// MessageDescriptor, which the receiver compares.
//
// Example: a send of 2 fragments. The stream copies fragment 0 into an outgoing slot and writes arrived = 1 on its
// stream sync words. The HostProxy sends the descriptor, then fragment 0, and stores consumed = 1 on the sync words
// when the send completes: the slot is free. At the receiver the HostProxy posts fragment 0 into an incoming slot and
// stores arrived = 1 when it is there.
//
// Invariants: a lane (peer, channel, direction) posts its messages and fragments in order.
// A receive is posted only after both ranks agree on the message, and only if the stream has consumed the slot's last
// content.
// Complexity: O(lanes) per round; it polls for 200 us after the last progress, then every 20 us, and sleeps if idle.
// Source: docs/design/cuda_between_hosts.md; NCCL's network proxy threads have the same task.

#pragma once

#include "device/peer_copy/layout.hpp"
#include "headway/comm/group.hpp"

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <tuple>
#include <vector>

namespace headway::comm::peer_copy {

/// Thread that plays the peer of remote links. It sends data that streams have copied to the host, and receives data
/// that they wait for, over the group. If the group fails it leaves all words as they are.
///
/// Protocol: first the message's descriptor, which the receiver compares with its own, then its fragments.
class HostProxy {
 public:
  /// One direction of a channel to a peer.
  struct Direction {
    int peer, channel;
    bool is_send;
    friend bool operator<(Direction const& left, Direction const& right) {
      return std::tie(left.peer, left.channel, left.is_send) < std::tie(right.peer, right.channel, right.is_send);
    }
  };
  /// A message whose fragments a stream will copy to the host or waits for.
  struct Message {
    MessageDescriptor descriptor;
    std::uint64_t first_fragment, num_fragments;
    bool is_staged;  ///< The block is small: its fragment lies in a stage instead of a slot (layout.hpp).
  };

  explicit HostProxy(Group& group);
  /// Waits until all messages are done or the group has failed.
  ~HostProxy();
  HostProxy(HostProxy const&) = delete;
  HostProxy& operator=(HostProxy const&) = delete;

  /// Adds a message. Messages of one direction come in the order of their fragments. Thread-safe; does not wait for
  /// messages under way.
  void add(std::shared_ptr<RemoteMemory const> memory, Direction direction, Message const& message);

 private:
  /// An operation of the group: a fragment, or the peer's descriptor of a message.
  struct Posted {
    OperationPtr operation;
    std::optional<std::uint64_t> fragment{};
    std::unique_ptr<MessageDescriptor> own{}, peers{};  ///< `peers` is set only for a received descriptor.
  };
  /// Messages of one Direction that are not done.
  struct Lane {
    std::shared_ptr<RemoteMemory const> memory{};
    std::deque<Message> waiting{};
    std::uint64_t num_posted = 0;  ///< Fragments posted of the first waiting message.
    bool is_announced = false;     ///< The descriptor of that message is posted.
    bool is_agreed = false;        ///< On receive: the peer's descriptor equals ours.
    std::deque<Posted> posted{};
  };
  struct Added {
    Direction direction;
    std::shared_ptr<RemoteMemory const> memory;
    Message message;
  };

  void run() noexcept;
  void drive();
  /// Moves added messages into their lanes; waits for more if there is nothing to do. @returns whether to go on.
  bool take_added();
  /// post() and complete() advance one lane.
  /// @returns whether anything moved on. @throws std::exception, which fails the group.
  bool post(Direction const& direction, Lane& lane);
  bool complete(Direction const& direction, Lane& lane);
  void announce(Direction const& direction, Lane& lane);
  void post_fragment(Direction const& direction, Lane& lane);
  [[nodiscard]] OperationPtr start(Direction const& direction, std::span<std::byte> bytes, DataType type);
  [[nodiscard]] bool is_idle() const;

  Group& group_;
  std::map<Direction, Lane> lanes_;  ///< Used by the thread only.

  std::mutex mutex_;  ///< Guards the members below.
  std::condition_variable changed_;
  std::vector<Added> added_;
  bool stops_ = false;
  std::thread thread_;  ///< Last member: the thread uses all others.
};

}  // namespace headway::comm::peer_copy
