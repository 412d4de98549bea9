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

/// Longest time-out; a longer one counts as this. A Deadline holds nanoseconds and would overflow after 292 years.
inline constexpr std::chrono::milliseconds kLongestTimeout = std::chrono::hours(24 * 365 * 100);

/// The time `timeout` from now.
inline Deadline deadline_after(std::chrono::milliseconds timeout) {
  return Clock::now() + std::min(timeout, kLongestTimeout);
}

/// A put's header area: the payload of a message starts this many bytes after its destination. A put without a header
/// leaves the area as it is.
inline constexpr std::size_t kHeaderBytes = 64;

/// Largest header of a put.
inline constexpr std::size_t kMaxHeaderBytes = 48;

/// Segments of a rank: 0 is its landing segment (made when the endpoint connects); others are exposed user memory.
using SegmentId = std::uint32_t;
inline constexpr SegmentId kLandingSegment = 0;

/// Where a put lands: `offset` bytes into `segment` of rank `peer`. In the landing segment, a multiple of 64.
struct Destination {
  int peer = 0;
  SegmentId segment = kLandingSegment;
  std::uint64_t offset = 0;
};

inline constexpr std::size_t kMaxNoticeBytes = 4096;

/// Gets what poll() finds. Called under the caller's lock; must not call back into the endpoint's poll().
class ArrivalSink {
 public:
  virtual ~ArrivalSink() = default;
  /// Everything that was put with `tag` by `source` is in place. May repeat, and in any order.
  virtual void arrived(int source, Tag tag) = 0;
  /// `peer` sent `text` with send_notice().
  virtual void notice(int peer, std::string_view text) = 0;
  /// Nothing will come from `peer` any more; called once per peer.
  virtual void lost(int peer, std::string_view reason) = 0;
};

/// What an endpoint can do towards one peer besides put().
struct PeerTraits {
  std::string_view engine;               ///< "inproc", "shm", "tcp", ...
  bool can_get = false;                  ///< get() reads that peer's user memory, and claim() works between the two.
  bool can_put_exposed = false;          ///< put() may name a segment that the peer exposed.
  bool copies_at_put = false;            ///< put() is done with its payload when it returns: flushed() is put_count().
  std::size_t max_put_bytes = kNoLimit;  ///< Largest payload of one put.
  std::size_t piece_bytes = kNoLimit;    ///< Larger payloads for an exposed segment go in puts of this size.
  std::size_t worth_exposing_bytes = 0;  ///< Smaller memory that is not of allocate() is better not exposed.

  static constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();
};

/// How ranks share a host.
struct HostShare {
  int num_ranks = 1;
  int num_cores = 1;
};

/// One rank's connection to all ranks of a group: the plug-in point for transports.
///
/// A put copies bytes into memory of the peer that the library owns and then makes a tag visible there. Nothing is
/// said about the order of two puts, even to one peer. Calls on one endpoint must not overlap, except sleep() and
/// wake(). No call but sleep() blocks.
class Endpoint {
 public:
  Endpoint() = default;
  Endpoint(Endpoint const&) = delete;
  Endpoint& operator=(Endpoint const&) = delete;
  virtual ~Endpoint() = default;

  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  [[nodiscard]] virtual PeerTraits traits(int peer) const = 0;

  /// This rank's landing segment: 64-byte aligned, library-owned, zero at first. Peers' puts land here.
  [[nodiscard]] virtual std::span<std::byte> landing() = 0;

  /// Starts copying `header` (at most kMaxHeaderBytes) to `destination` and `payload` to kHeaderBytes after it, then
  /// makes `tag` visible. In an exposed segment only the payload is written, at `destination.offset` itself.
  /// `payload` belongs to the library until flushed(peer) reaches the value that put_count(peer) has after this call;
  /// `header` is copied at once. Effects may wait for submit(). `peer` is another rank.
  /// @returns kWouldBlock, with no effect, where no credit is left.
  /// @throws UsageError if the peer is not another rank or the range leaves its landing segment. An endpoint may have
  /// been made with landing segments in parts, one for each source: then the range must lie in this rank's part.
  virtual Status put(Destination const& destination, std::span<std::byte const> header,
                     std::span<std::byte const> payload, Tag tag) = 0;

  /// Says that a put with this destination and these sizes comes soon; one without a payload, at once. An engine may
  /// use it to get ready.
  virtual void prepare(Destination const& /*destination*/, std::size_t /*header_bytes*/,
                       std::size_t /*payload_bytes*/) {}

  /// Makes all puts so far go, and wakes peers that sleep.
  virtual void submit() = 0;

  /// Number of puts to `peer` accepted so far, and how many of those no longer need their source.
  [[nodiscard]] virtual std::uint64_t put_count(int peer) const = 0;
  [[nodiscard]] virtual std::uint64_t flushed(int peer) const = 0;

  /// Reports arrivals, notices and losses to `sink`. @returns whether anything was found or moved on.
  virtual bool poll(ArrivalSink& sink) = 0;

  /// Reads `local.size()` bytes at `address` of the peer's process. Only where traits(peer).can_get.
  /// @returns kPeerLost with a message if the peer's memory cannot be read; kAborted if the peer called retract().
  virtual Status get(int peer, std::uint64_t address, std::span<std::byte> local) = 0;

  /// Takes `value` of the 64-bit word at `offset` of the landing segment of rank `owner`: a peer with can_get, or this
  /// rank. Of all ranks that try, the first gets it. Values of one word are taken in rising order; it starts with 0.
  /// @returns whether this call got it.
  virtual bool claim(int owner, std::uint64_t offset, std::uint64_t value) = 0;

  /// From now on no get() by a peer succeeds here and no payload of a put is read: user memory may go away. Puts that
  /// are not out may never arrive.
  virtual void retract() noexcept = 0;

  /// Lets `peer` put into `memory` as `segment` (not 0), until withdraw(). Only where traits(peer).can_put_exposed.
  /// After withdraw() returns nothing is written there, whatever the peer does; memory of allocate() may stay within
  /// its reach until retract(), and the peer must keep to what it was told. A put by this rank that follows tells the
  /// peer that it may begin.
  /// @returns false, with no effect, where this cannot be had now: the payload must come another way.
  virtual bool expose(int peer, SegmentId segment, std::span<std::byte> memory) = 0;
  virtual void withdraw(int peer, SegmentId segment) = 0;

  /// Sends a text of at most kMaxNoticeBytes out of band, as an error report; best effort.
  virtual void send_notice(int peer, std::string_view text) noexcept = 0;

  /// Whether connections that are gone show only when something is sent: then keep_alive() must be called about once a
  /// second, so that they show to a rank that has nothing under way.
  [[nodiscard]] virtual bool wants_keep_alive() const { return false; }
  virtual void keep_alive() {}

  /// From arm() to disarm(), each put to this rank wakes sleep(). Poll between arm() and sleep(), and between two calls
  /// of sleep(), or a wake-up may be missed.
  virtual void arm() = 0;
  virtual void disarm() = 0;
  /// Blocks until a peer's put after arm(), input on a socket, wake() or the deadline. May return early; with a
  /// deadline in the past it only looks. It takes the wake-up with it, so each return must be followed by poll(); of
  /// several threads that sleep, some may go on sleeping until wake().
  virtual void sleep(Deadline deadline) = 0;
  /// Ends sleep() in all threads that are in it; thread-safe.
  virtual void wake() noexcept = 0;

  /// A descriptor for epoll that is readable when a peer was lost, a notice came, or socket input waits. -1: none.
  [[nodiscard]] virtual int lifeline_fd() const = 0;
  /// Like lifeline_fd(), and readable too when a put arrives after arm(), until sleep() has taken that wake-up.
  [[nodiscard]] virtual int activity_fd() const = 0;
  /// Ranks on this host, this one included, and the cores that they may use together.
  [[nodiscard]] virtual HostShare host_share() const = 0;
  /// Whether this rank must poll for other ranks' puts to land (tcp).
  [[nodiscard]] virtual bool lands_by_polling() const = 0;
};

}  // namespace headway::comm
