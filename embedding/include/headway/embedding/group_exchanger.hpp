// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/base/status.hpp"
#include "headway/comm/group.hpp"
#include "headway/embedding/exchanger.hpp"

#include <sys/types.h>
#include <unistd.h>

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <utility>

namespace headway::embedding {

/// Exchanges over a channel of a comm::Group, of blocks in host memory. Programs that use it link headway::comm beside
/// headway::embedding.
class GroupExchanger final : public Exchanger {
 public:
  /// @param group must outlive the exchanger
  /// @param channel of the group: its operations are numbered together. All ranks start the exchanges on it in one
  ///   order, whoever starts them. Nothing else may send messages whose `match` (tag) has bit 62 set.
  /// @param while_waiting called every 200 ms of a wait; an exception of it ends the wait. None: nothing is called
  /// @param when_done called when an exchange or message is done, by a thread of the group, for callers that sleep
  ///   until Exchange::is_done(). None: nothing is called
  explicit GroupExchanger(comm::Group& group, int channel = 0, std::function<void()> while_waiting = {},
                          std::function<void()> when_done = {})
      : group_(group), channel_(channel), while_waiting_(std::move(while_waiting)), when_done_(std::move(when_done)) {}

  [[nodiscard]] int rank() const override { return group_.rank(); }
  [[nodiscard]] int size() const override { return group_.size(); }
  [[nodiscard]] bool takes_capacities() const override { return true; }
  [[nodiscard]] std::unique_ptr<Exchange> start(std::span<std::span<std::byte const> const> sends,
                                                std::span<std::span<std::byte> const> receives,
                                                std::shared_ptr<void const> memory,
                                                std::span<std::size_t> received_bytes = {}) override {
    auto operation = group_.all_to_all_v({.sends = sends,
                                          .receives = receives,
                                          .data_type = kBytes,
                                          .channel = channel_,
                                          .received_bytes = received_bytes});
    next_seq_ = operation->seq() + 1;
    return started(std::move(operation), std::move(memory));
  }
  /// Number of the next all-to-all of this exchanger in its channel: see GroupMonitor::on_peer_ahead().
  [[nodiscard]] std::uint64_t next_seq() const { return next_seq_; }
  [[nodiscard]] std::unique_ptr<Exchange> send(std::span<std::byte const> block, int peer, std::uint64_t number,
                                               std::shared_ptr<void const> memory) override {
    return started(group_.send(block, peer, match_of(number), kBytes), std::move(memory));
  }
  [[nodiscard]] std::unique_ptr<Exchange> receive(std::span<std::byte> block, int peer, std::uint64_t number,
                                                  std::shared_ptr<void const> memory) override {
    return started(group_.receive(block, peer, match_of(number), kBytes), std::move(memory));
  }

 private:
  static constexpr comm::DataType kBytes = 0;  ///< Blocks are bytes to the group.

  /// Tag of a message between two ranks. Such messages do not belong to a channel, so the tag has the channel's number
  /// to tell the exchangers of a group apart.
  [[nodiscard]] std::uint64_t match_of(std::uint64_t number) const {
    return std::uint64_t{1} << 62 | static_cast<std::uint64_t>(channel_) << 48 | number;
  }

  [[nodiscard]] std::unique_ptr<Exchange> started(comm::OperationPtr operation,
                                                  std::shared_ptr<void const> memory) const {
    if (when_done_) group_.on_done(*operation, when_done_, std::chrono::microseconds(0));
    return std::make_unique<Started>(group_, std::move(operation), std::move(memory), while_waiting_);
  }

  class Started final : public Exchange {
   public:
    Started(comm::Group& group, comm::OperationPtr operation, std::shared_ptr<void const> memory,
            std::function<void()> while_waiting)
        : group_(group),
          operation_(std::move(operation)),
          memory_(std::move(memory)),
          while_waiting_(std::move(while_waiting)) {}
    /// The group writes to the blocks until the operation is done. So they live until then. A child process has the
    /// parent's group only as a copy that nobody may use, and its blocks are not written.
    ~Started() override {
      if (operation_ == nullptr || operation_->done() || process_ != getpid()) return;
      try {
        group_.on_done(*operation_, [operation = operation_, memory = memory_] {});
      } catch (std::exception const&) {  // No thread was left for the callback.
        static_cast<void>(group_.wait(*operation_));
      }
    }
    Started(Started const&) = delete;
    Started& operator=(Started const&) = delete;
    [[nodiscard]] bool is_done() override { return operation_ == nullptr || group_.test(*operation_); }
    void wait() override {
      if (operation_ == nullptr) return;
      base::expects(process_ == getpid(), "an exchange that the parent process has started is not the child's");
      while (while_waiting_ && !operation_->done()) {
        static_cast<void>(group_.wait(*operation_, kSlice));
        if (!operation_->done()) while_waiting_();
      }
      auto const operation = std::exchange(operation_, nullptr);
      if (auto const status = group_.wait(*operation); !status.ok()) throw comm::OperationError(status);
    }

   private:
    static constexpr std::chrono::milliseconds kSlice{200};  ///< Time between two calls of while_waiting().

    comm::Group& group_;
    comm::OperationPtr operation_;
    std::shared_ptr<void const> memory_;
    std::function<void()> while_waiting_;
    pid_t process_ = getpid();
  };

  comm::Group& group_;
  int channel_;
  std::function<void()> while_waiting_, when_done_;
  std::uint64_t next_seq_ = 0;
};

}  // namespace headway::embedding
