// SPDX-License-Identifier: Apache-2.0

// One queue pair to a peer: requests that wait to be posted, and resources that wait for completions.
//
// Idea: ibv_post_send() rings the device's doorbell, so writes are collected and posted together. A completion is
// asked for only every 16 requests, since each costs the device a write and this thread a poll. Requests of one queue
// pair complete in order, so one completion frees everything before it.
//
// Example: requests 1 to 20, signalled at 16. Its completion has wr_id 16: reclaim(16) frees the staging memory of 1
// to 16. Requests 17 to 20 are freed with the completion of 32, or of a request that reads a payload in place.
//
// Invariant: unreclaimed_ holds the signalled requests in order. num_requests_ - num_reclaimed_ bounds the send queue.

#pragma once

#include "transport/verbs/connection.hpp"
#include "transport/verbs/device.hpp"
#include "transport/verbs/limits.hpp"
#include "transport/verbs/registrations.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace headway::comm::verbs {

/// A write that is not posted yet. Its pieces lie in registered memory.
struct Request {
  ibv_send_wr work;
  std::array<ibv_sge, 2> pieces;

  void add_piece(std::span<std::byte const> piece, std::uint32_t key) {
    pieces[static_cast<std::size_t>(work.num_sge++)] = {.addr = reinterpret_cast<std::uintptr_t>(piece.data()),
                                                        .length = static_cast<std::uint32_t>(piece.size()),
                                                        .lkey = key};
  }
};

/// Ring of registered memory for bytes that the device has not read yet. Pieces are taken and freed in FIFO order.
/// Example: 1,024 bytes, pieces of 400 and 300 bytes are taken (rounded to 448 and 320). 256 bytes are left before
/// the end, too few for 300 more: they are skipped, and the piece begins at 0 if the first one was freed.
class StagingRing {
 public:
  StagingRing() = default;
  explicit StagingRing(std::span<std::byte> memory) : memory_(memory) {}

  /// Takes a 64-byte aligned piece that does not wrap around; empty if there is no room now. `size` is at most the
  /// capacity.
  std::optional<std::span<std::byte>> take(std::size_t size) {
    std::size_t const rounded = (size + 63) / 64 * 64;
    bool const wraps = at_ + rounded > memory_.size();
    std::size_t const skipped = wraps ? memory_.size() - at_ : 0;
    if (taken_ + skipped + rounded - given_back_ > memory_.size()) return std::nullopt;
    std::size_t const begin = wraps ? 0 : at_;
    taken_ += skipped + rounded;
    at_ = begin + rounded;
    return memory_.subspan(begin, size);
  }
  /// End of the newest piece, as give_back() expects it.
  [[nodiscard]] std::uint64_t position() const { return taken_; }
  /// Frees everything up to `position`.
  void give_back(std::uint64_t position) { given_back_ = position; }

 private:
  std::span<std::byte> memory_;
  std::size_t at_ = 0;                        ///< Start of the next piece, unless it would wrap around.
  std::uint64_t taken_ = 0, given_back_ = 0;  ///< Total bytes, including skipped ends.
};

/// One reliable connection to a peer. Writes are collected, posted in one call, and reclaimed when the device has
/// completed them.
class Rail {
 public:
  Rail(QueuePair queue_pair, std::span<std::byte> staging) : queue_pair_(std::move(queue_pair)), staging_(staging) {}

  [[nodiscard]] ibv_qp* queue_pair() const { return queue_pair_.get(); }
  /// True if there is room for a put. A few more requests are reserved for credits, which must go while puts wait.
  [[nodiscard]] bool has_room() const { return num_requests_ - num_reclaimed_ < kSendRequests - kReservedRequests; }
  /// True if there is room for a write that may use the reserve.
  [[nodiscard]] bool has_reserve() const { return num_requests_ - num_reclaimed_ < kSendRequests; }
  /// True if a signalled request is outstanding. An unsignalled request completes visibly only if it fails.
  [[nodiscard]] bool expects_completion() const { return num_at_signal_ != num_reclaimed_; }
  /// True if the device has reported every request as complete.
  [[nodiscard]] bool is_out() const { return num_requests_ == num_reclaimed_; }
  [[nodiscard]] bool has_unposted() const { return num_unposted_ != 0; }

  /// Registered memory that the device owns from the next request until that is reclaimed. Empty if there is no room
  /// now.
  std::optional<std::span<std::byte>> stage(std::size_t size) { return staging_.take(size); }

  /// Adds a write, without pieces yet, to those that post() posts. Signals it every kRequestsPerSignal requests or
  /// every quarter of the staging memory.
  [[gnu::always_inline]] Request& add_write(RemoteMemory const& to) {
    if (num_unposted_ == requests_.size()) requests_.emplace_back();
    Request& request = requests_[num_unposted_++];
    request.work.num_sge = 0;
    request.work.send_flags = 0;
    request.work.wr_id = ++num_requests_;
    request.work.opcode = IBV_WR_RDMA_WRITE;
    request.work.wr.rdma.remote_addr = to.address;
    request.work.wr.rdma.rkey = to.key;
    // By number and by bytes: with large copies the staging memory would run out before 16 requests.
    bool const is_due = num_requests_ - num_at_signal_ >= kRequestsPerSignal ||
                        staging_.position() - staging_at_signal_ >= kStagingBytes / 4;
    if (is_due) signal(request);
    return request;
  }
  /// Requests a completion for the newest request. It covers all requests before it.
  void signal(Request& request) { signal(request, 0, nullptr); }
  /// Same, for the request of put `put_count`, whose payload the device reads in place.
  void signal_in_place(Request& request, std::uint64_t put_count, Registration payload) {
    signal(request, put_count, std::move(payload));
    ++num_in_place_;
  }

  /// Posts all collected writes in one call. @returns an errno value, 0 on success.
  int post();
  /// Frees what request `wr_id` and all before it used.
  void reclaim(std::uint64_t wr_id);
  /// put_count of the oldest put whose payload the device may still read; empty if there is none.
  [[nodiscard]] std::optional<std::uint64_t> oldest_in_place() const;
  /// The device reads no payload in place from now on: requests that need one fail.
  void let_go_of_payloads();

 private:
  /// Resources that become free when the device completes request `wr_id`.
  struct Unreclaimed {
    std::uint64_t wr_id;
    std::uint64_t staging_position;
    std::uint64_t put_count;  ///< Put whose payload the device reads in place; 0 if its payload was copied.
    Registration payload;
  };

  void signal(Request& request, std::uint64_t put_count, Registration payload) {
    request.work.send_flags |= IBV_SEND_SIGNALED;
    num_at_signal_ = num_requests_;
    staging_at_signal_ = staging_.position();
    unreclaimed_.push_back({.wr_id = num_requests_,
                            .staging_position = staging_at_signal_,
                            .put_count = put_count,
                            .payload = std::move(payload)});
  }

  QueuePair queue_pair_;
  StagingRing staging_;
  std::uint64_t num_requests_ = 0, num_reclaimed_ = 0, num_at_signal_ = 0, staging_at_signal_ = 0;
  std::vector<Request> requests_;  ///< The first num_unposted_ are not posted yet. The others are free for reuse.
  std::size_t num_unposted_ = 0;
  std::deque<Unreclaimed> unreclaimed_;
  std::size_t num_in_place_ = 0;  ///< Entries of unreclaimed_ whose payload the device reads in place.
};

inline int Rail::post() {
  for (std::size_t i = 0; i < num_unposted_; ++i) {
    ibv_send_wr& work = requests_[i].work;
    work.sg_list = requests_[i].pieces.data();
    work.next = i + 1 < num_unposted_ ? &requests_[i + 1].work : nullptr;
  }
  if (std::exchange(num_unposted_, 0) == 0) return 0;
  ibv_send_wr* failed = nullptr;
  return ibv_post_send(queue_pair_.get(), &requests_.front().work, &failed);
}

inline void Rail::reclaim(std::uint64_t wr_id) {
  while (!unreclaimed_.empty() && unreclaimed_.front().wr_id <= wr_id) {
    num_reclaimed_ = unreclaimed_.front().wr_id;
    staging_.give_back(unreclaimed_.front().staging_position);
    if (unreclaimed_.front().put_count != 0) --num_in_place_;
    unreclaimed_.pop_front();
  }
}

inline std::optional<std::uint64_t> Rail::oldest_in_place() const {
  if (num_in_place_ == 0) return std::nullopt;
  return std::ranges::find_if(unreclaimed_, [](auto const& each) { return each.put_count != 0; })->put_count;
}

inline void Rail::let_go_of_payloads() {
  for (auto& each : unreclaimed_) each.payload.reset();
}

}  // namespace headway::comm::verbs
