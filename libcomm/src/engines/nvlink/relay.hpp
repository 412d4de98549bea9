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
#include <thread>
#include <tuple>
#include <vector>

namespace headway::comm::nvlink {

/// The peer's part of remote links, played by a thread: it sends what streams have copied to the host, and receives
/// what they wait for, over the group. It looks at the words that streams write, and writes those that streams wait
/// for; it calls no driver. When the group fails it leaves everything as it is.
class Relay {
 public:
  /// One that a stream will copy to the host, or waits for.
  struct Fragment {
    std::uint64_t number;
    std::size_t num_bytes;
    bool is_staged;
    DataType data_type;
  };

  explicit Relay(Group& group);
  /// Waits until all is done, or the group has failed.
  ~Relay();
  Relay(Relay const&) = delete;
  Relay& operator=(Relay const&) = delete;

  /// Fragments of a peer, channel and direction come in the order of their numbers. Thread-safe; does not wait for what
  /// is under way.
  void add(std::shared_ptr<RemoteMemory const> memory, int peer, int channel, bool is_send, Fragment const& fragment);

 private:
  struct Posted {
    std::uint64_t number;
    OperationPtr operation;
  };
  /// One direction of a channel to a peer.
  struct Lane {
    std::shared_ptr<RemoteMemory const> memory{};
    std::deque<Fragment> waiting{};
    std::deque<Posted> posted{};
  };
  using Key = std::tuple<int, int, bool>;  ///< Peer, channel, and whether it sends.
  struct Added {
    Key key;
    std::shared_ptr<RemoteMemory const> memory;
    Fragment fragment;
  };

  void run() noexcept;
  void relay();
  /// Puts what was added into its lanes; waits for more where there is nothing to do. @returns whether to go on.
  bool take_added();
  /// @returns whether anything moved on. @throws std::exception: the group fails.
  bool step(Key const& key, Lane& lane);
  [[nodiscard]] static bool may_post(Key const& key, Lane const& lane);
  [[nodiscard]] OperationPtr post(Key const& key, Lane const& lane, Fragment const& fragment);
  [[nodiscard]] bool is_idle() const;

  Group& group_;
  std::map<Key, Lane> lanes_;  ///< Of the thread alone.

  std::mutex mutex_;  ///< Guards what follows.
  std::condition_variable changed_;
  std::vector<Added> added_;
  bool stops_ = false;
  std::thread thread_;  ///< Last: uses all else.
};

}  // namespace headway::comm::nvlink
