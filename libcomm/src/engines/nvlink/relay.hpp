#pragma once

#include "engines/nvlink/layout.hpp"
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

namespace headway::comm::nvlink {

/// The peer's part of remote links, played by a thread: it sends what streams have copied to the host, and receives
/// what they wait for, over the group. It looks at the words that streams write, and writes those that streams wait
/// for; it calls no driver. When the group fails it leaves everything as it is.
///
/// A message is first what its sender means by it, which the receiver compares, then its fragments.
class Relay {
 public:
  /// One direction of a channel to a peer.
  struct Direction {
    int peer, channel;
    bool is_send;
    friend bool operator<(Direction const& left, Direction const& right) {
      return std::tie(left.peer, left.channel, left.is_send) < std::tie(right.peer, right.channel, right.is_send);
    }
  };
  /// Whose fragments a stream will copy to the host, or waits for.
  struct Message {
    MessageMeaning meaning;
    std::uint64_t first_fragment, num_fragments;
    bool is_staged;
  };

  explicit Relay(Group& group);
  /// Waits until all is done, or the group has failed.
  ~Relay();
  Relay(Relay const&) = delete;
  Relay& operator=(Relay const&) = delete;

  /// Messages of a direction come in the order of their fragments. Thread-safe; does not wait for what is under way.
  void add(std::shared_ptr<RemoteMemory const> memory, Direction direction, Message const& message);

 private:
  /// An operation of the group: a fragment, or what the peer means by a message.
  struct Posted {
    OperationPtr operation;
    std::optional<std::uint64_t> fragment{};
    std::unique_ptr<MessageMeaning> own{}, peers{};  ///< The second where it is received.
  };
  struct Lane {
    std::shared_ptr<RemoteMemory const> memory{};
    std::deque<Message> waiting{};
    std::uint64_t num_posted = 0;  ///< Fragments of the first that waits.
    bool is_announced = false;     ///< Of that one: what it means is posted,
    bool is_agreed = false;        ///< and the peer means the same, if it is received.
    std::deque<Posted> posted{};
  };
  struct Added {
    Direction direction;
    std::shared_ptr<RemoteMemory const> memory;
    Message message;
  };

  void run() noexcept;
  void relay();
  /// Puts what was added into its lanes; waits for more where there is nothing to do. @returns whether to go on.
  bool take_added();
  /// Both: @returns whether anything moved on. @throws std::exception: the group fails.
  bool post(Direction const& direction, Lane& lane);
  bool complete(Direction const& direction, Lane& lane);
  void announce(Direction const& direction, Lane& lane);
  void post_fragment(Direction const& direction, Lane& lane);
  [[nodiscard]] OperationPtr start(Direction const& direction, std::span<std::byte> bytes, DataType type);
  [[nodiscard]] bool is_idle() const;

  Group& group_;
  std::map<Direction, Lane> lanes_;  ///< Of the thread alone.

  std::mutex mutex_;  ///< Guards what follows.
  std::condition_variable changed_;
  std::vector<Added> added_;
  bool stops_ = false;
  std::thread thread_;  ///< Last: uses all else.
};

}  // namespace headway::comm::nvlink
