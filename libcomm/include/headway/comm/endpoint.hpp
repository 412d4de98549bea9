// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/comm/status.hpp"
#include "headway/comm/tag.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>

namespace headway::comm {

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;

/// Longest timeout; a longer one is cut to this. A Deadline holds nanoseconds and would overflow after 292 years.
inline constexpr std::chrono::milliseconds kLongestTimeout = std::chrono::hours(24 * 365 * 100);

/// The time `timeout` from now.
inline Deadline deadline_after(std::chrono::milliseconds timeout) {
  return Clock::now() + std::min(timeout, kLongestTimeout);
}

/// In the receive buffer a payload starts this many bytes after the destination of its put. The header lies between
/// them; a put without a header leaves these bytes unchanged.
inline constexpr std::size_t kHeaderBytes = 64;

/// Largest header of a put. A header describes the message to the receiving channel.
inline constexpr std::size_t kMaxHeaderBytes = 48;

/// Number of a window of a rank, which is memory that peers may put into. Window 0 is the receive buffer, made when the
/// endpoint connects; other windows are user memory.
using WindowId = std::uint32_t;
inline constexpr WindowId kReceiveBuffer = 0;

/// Destination of a put: `offset` bytes into `window` of rank `peer`. In the receive buffer the offset is a multiple
/// of 64.
struct Destination {
  int peer = 0;
  WindowId window = kReceiveBuffer;
  std::uint64_t offset = 0;
};

/// Largest text of send_oob().
inline constexpr std::size_t kMaxOobBytes = 4096;

/// Receives the findings of poll(). Its methods run under the caller's lock and must not call poll() of that endpoint.
class ArrivalSink {
 public:
  virtual ~ArrivalSink() = default;
  /// All bytes of `source` that belong to `tag` are in place. Calls may repeat and may come in any order.
  virtual void arrived(int source, Tag tag) = 0;
  /// `peer` sent `text` with send_oob().
  virtual void on_oob(int peer, std::string_view text) = 0;
  /// Nothing more will arrive from `peer`. Called once per peer.
  virtual void lost(int peer, std::string_view reason) = 0;
};

/// Capabilities of an endpoint towards one peer, besides put().
struct PeerTraits {
  std::string_view transport;      ///< "inproc", "shm", "tcp", ...
  bool can_get = false;            ///< get() can read that peer's user memory, and claim() works between the two.
  bool can_put_to_window = false;  ///< put() may write to a window that the peer opened.
  bool copies_at_put = false;      ///< put() no longer needs its payload when it returns: flushed() equals put_count().
  std::size_t max_put_bytes = kNoLimit;  ///< Largest payload of one put, in bytes.
  std::size_t piece_bytes = kNoLimit;    ///< Callers cut larger payloads for a window into such puts.
  /// Smaller memory costs more to register than it saves, unless it is from allocate() (memory.hpp).
  std::size_t min_window_bytes = 0;

  static constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();
};

/// Number of ranks on this host and of the cores they share.
struct HostShare {
  int num_ranks = 1;
  int num_cores = 1;
};

/// One rank's connection to all ranks of a group: the interface that every transport implements.
///
/// A put copies bytes into the peer's receive buffer, which the library owns, or into a window that the peer opened;
/// then it makes a tag visible there. Two puts may become visible in any order, even to one peer. Calls on one endpoint
/// must not overlap, except sleep() and wake(). Only sleep() blocks.
class Endpoint {
 public:
  Endpoint() = default;
  Endpoint(Endpoint const&) = delete;
  Endpoint& operator=(Endpoint const&) = delete;
  virtual ~Endpoint() = default;

  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  [[nodiscard]] virtual PeerTraits traits(int peer) const = 0;

  /// This rank's receive buffer: puts of peers arrive in it. 64-byte aligned, owned by the library, zero at
  /// first.
  [[nodiscard]] virtual std::span<std::byte> receive_buffer() = 0;

  /// Starts copying `header` (at most kMaxHeaderBytes) to `destination` and `payload` to kHeaderBytes after it, then
  /// makes `tag` visible there. In a window only the payload is written, at `destination.offset` itself.
  /// `header` is copied before the call returns. `payload` belongs to the library until flushed(peer) reaches the value
  /// of put_count(peer) after this call. The put may stay unsent until submit().
  /// @returns kWouldBlock, with no effect, if no credit is left.
  /// @throws UsageError if `destination.peer` is not another rank, or if the range leaves the peer's receive buffer.
  /// If a transport divides receive buffers into one part per source (shm can), the range must lie in this rank's part.
  virtual Status put(Destination const& destination, std::span<std::byte const> header,
                     std::span<std::byte const> payload, Tag tag) = 0;

  /// Hint that a put with this destination and these sizes follows soon. A transport may prefetch.
  /// If `payload_bytes` is 0, the put is the next call.
  virtual void prepare(Destination const& /*destination*/, std::size_t /*header_bytes*/,
                       std::size_t /*payload_bytes*/) {}

  /// Sends all puts accepted so far, and wakes sleeping peers.
  virtual void submit() = 0;

  /// put_count(): number of puts to `peer` accepted so far. flushed(): how many of them no longer need their payload.
  [[nodiscard]] virtual std::uint64_t put_count(int peer) const = 0;
  [[nodiscard]] virtual std::uint64_t flushed(int peer) const = 0;

  /// Reports arrivals, OOB messages and losses to `sink`. @returns whether it found anything or made progress.
  virtual bool poll(ArrivalSink& sink) = 0;

  /// Reads `local.size()` bytes at `address` in the peer's process. Requires traits(peer).can_get.
  /// @returns kPeerLost with a message if the peer's memory cannot be read; kAborted if the peer called retract().
  virtual Status get(int peer, std::uint64_t address, std::span<std::byte> local) = 0;

  /// Atomic maximum: sets the 64-bit word at `offset` in the receive buffer of rank `owner` to `value` if the word is
  /// smaller. So of several callers with one value, only the first succeeds. The word starts at 0. `owner` is a peer
  /// with can_get, or this rank.
  /// @returns whether this call set the word.
  virtual bool claim(int owner, std::uint64_t offset, std::uint64_t value) = 0;

  /// After this call, no get() by a peer succeeds here and no payload of a put is read: the caller may free its memory.
  /// Puts that were not sent yet may never arrive.
  virtual void retract() noexcept = 0;

  /// Lets `peer` put into `memory`, as window number `window` (not 0), until close_window(). Requires
  /// traits(peer).can_put_to_window. The peer may begin when it receives a later put of this rank that tells it so.
  /// After close_window() returns, nothing is written to `memory`, whatever the peer does. Memory from allocate() is
  /// the exception: it may stay registered until retract(), and there the peer must keep to the protocol.
  /// @returns false, with no effect, if the memory cannot be registered now. The payload must then go another way.
  virtual bool open_window(int peer, WindowId window, std::span<std::byte> memory) = 0;
  virtual void close_window(int peer, WindowId window) = 0;

  /// Sends a text of at most kMaxOobBytes out of band, for instance an error report. Best effort.
  virtual void send_oob(int peer, std::string_view text) noexcept = 0;

  /// Do broken connections show only when something is sent? Then keep_alive() must be called about once a second, so
  /// that a rank without pending work also notices lost peers.
  [[nodiscard]] virtual bool wants_keep_alive() const { return false; }
  virtual void keep_alive() {}

  /// From arm() to disarm(), each put to this rank wakes sleep(). The caller must poll between arm() and sleep(), and
  /// between two calls of sleep(), or it may miss a wake-up.
  virtual void arm() = 0;
  virtual void disarm() = 0;
  /// Blocks until a put of a peer after arm(), input on a socket, wake() or the deadline. May return early. A deadline
  /// in the past makes it a check without blocking. It consumes the wake-up, so each return must be followed by poll().
  /// If several threads sleep, some may stay asleep until wake().
  virtual void sleep(Deadline deadline) = 0;
  /// Wakes all threads that are in sleep(). Thread-safe.
  virtual void wake() noexcept = 0;

  /// Descriptor for epoll: readable when a peer was lost, an OOB message came, or socket input waits. -1: none.
  [[nodiscard]] virtual int control_fd() const = 0;
  /// Like control_fd(), but also readable when a put arrives after arm(), until sleep() consumes that wake-up.
  [[nodiscard]] virtual int activity_fd() const = 0;
  /// Number of ranks on this host, this one included, and of the cores they may use together.
  [[nodiscard]] virtual HostShare host_share() const = 0;
  /// Must this rank poll so that puts of other ranks reach its memory? True for tcp.
  [[nodiscard]] virtual bool receives_by_polling() const = 0;
};

}  // namespace headway::comm
