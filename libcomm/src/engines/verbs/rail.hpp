#pragma once

#include "engines/verbs/connection.hpp"
#include "engines/verbs/device.hpp"
#include "engines/verbs/limits.hpp"
#include "engines/verbs/registrations.hpp"
#include "engines/verbs/staging_ring.hpp"

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
  /// Frees what request `number` and all before it used.
  void reclaim(std::uint64_t number);
  /// put_count of the oldest put whose payload the device may still read; empty if there is none.
  [[nodiscard]] std::optional<std::uint64_t> oldest_in_place() const;
  /// The device reads no payload in place from now on: requests that need one fail.
  void let_go_of_payloads();

 private:
  /// Resources that become free when the device completes request `number`.
  struct Unreclaimed {
    std::uint64_t number;
    std::uint64_t staging_position;
    std::uint64_t put_count;  ///< Put whose payload the device reads in place; 0 if its payload was copied.
    Registration payload;
  };

  void signal(Request& request, std::uint64_t put_count, Registration payload) {
    request.work.send_flags |= IBV_SEND_SIGNALED;
    num_at_signal_ = num_requests_;
    staging_at_signal_ = staging_.position();
    unreclaimed_.push_back({.number = num_requests_,
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

inline void Rail::reclaim(std::uint64_t number) {
  while (!unreclaimed_.empty() && unreclaimed_.front().number <= number) {
    num_reclaimed_ = unreclaimed_.front().number;
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
