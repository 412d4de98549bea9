// SPDX-License-Identifier: Apache-2.0

// Messages of requests and answers.
//
// Both consist of a first message of fixed size, and of further ones if the body does not fit: pieces of the size of a
// link's message slots, which leave at once, and one message for the rest, which waits until its receiver has told
// where it belongs. A piece costs one copy more, and the other message a round trip. So as many bytes go in pieces as
// travel in a round trip, and the round trip of the rest passes meanwhile. Over short round trips nothing goes in
// pieces. The requester measures the round trip, and tells the responder. Nor are there pieces over shm, since the
// receiver reads the sender's memory.
//
// Example: a body of 300,000 bytes over tcp. The first message has the header (56 bytes) and the first 968 bytes of the
// body. With a round trip of 24 ms three pieces follow, of 131,072, 131,072 and 36,888 bytes, with the sequence number
// in their `match`: the body is there after 12 ms. With a round trip of 0.1 ms one message has the other 299,032 bytes.
// The receiver learns from the first message how the body is cut, and posts all receives.
//
// Integers have 64 bits, in the byte order of the host. The handshake of a group refuses peers of another byte order.

#pragma once

#include "headway/comm/group.hpp"
#include "headway/hybrid/body.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace headway::hybrid {

inline constexpr comm::DataType kBytes = 0;  // Messages are bytes to the group.
inline constexpr std::size_t kFirstBytes = 1024;

struct FrameHeader {
  std::uint64_t seq = 0;
  std::uint64_t generation = 0;
  std::uint64_t incarnation = 0;
  std::uint64_t kind = 0;  ///< Kind of a request; ReplyCode of an answer.
  std::uint64_t body_bytes = 0;
  std::uint64_t piece_bytes = 0;         ///< Bytes of the body that come in pieces.
  std::uint64_t answer_piece_bytes = 0;  ///< Bytes of the answer to this request that may come in pieces.
};
inline constexpr std::size_t kInlineBytes = kFirstBytes - sizeof(FrameHeader);

/// A first message.
struct Frame {
  FrameHeader header{};
  std::array<std::byte, kInlineBytes> inline_body{};

  [[nodiscard]] std::span<std::byte> bytes() { return std::as_writable_bytes(std::span(this, 1)); }
  [[nodiscard]] std::size_t num_inline() const { return std::min<std::size_t>(header.body_bytes, kInlineBytes); }
};
static_assert(sizeof(Frame) == kFirstBytes);

/// Bytes that a message with this body has on its way.
constexpr std::size_t message_bytes(std::size_t body_bytes) {
  return kFirstBytes + (body_bytes > kInlineBytes ? body_bytes - kInlineBytes : 0);
}

/// Kind of the request that asks for the incarnation. Users' kinds have 32 bits.
inline constexpr std::uint64_t kAskIncarnation = std::uint64_t{1} << 32;

/// `match` of the messages. A request has no number in it, because its receiver waits for any.
inline constexpr std::uint64_t kRequestMatch = std::uint64_t{1} << 60;
constexpr std::uint64_t request_rest_match(std::uint64_t seq) { return std::uint64_t{2} << 60 | seq; }
constexpr std::uint64_t reply_match(std::uint64_t seq) { return std::uint64_t{3} << 60 | seq; }
constexpr std::uint64_t reply_rest_match(std::uint64_t seq) { return std::uint64_t{4} << 60 | seq; }

/// Size of the message slots of a link with requests.
inline constexpr std::size_t kMessageSlotBytes = std::size_t{128} << 10;
/// Pieces of a body at most. Two of the 16 slots are left for other messages.
inline constexpr std::size_t kMostPieces = 14;
/// Rate at which pieces are taken to travel. A faster link is left idle for a part of a round trip.
inline constexpr std::size_t kPieceBytesPerMicrosecond = 1000;
/// A shorter round trip costs less than the copies of pieces (docs/design/hybrid.md).
inline constexpr std::chrono::microseconds kShortestRoundTrip{500};

/// Can the receiver read the memory of the sender? Then nothing goes in pieces.
inline bool can_get(comm::Group& link) {
  return link.options().allow_get && link.monitor().traits(1 - link.rank()).can_get;
}

/// Bytes of a body that go in pieces over a link at most, if its rest exceeds a piece.
inline std::size_t most_piece_bytes(comm::Group& link, std::chrono::microseconds round_trip) {
  if (round_trip < kShortestRoundTrip) return 0;
  if (can_get(link)) return 0;
  return std::min(kMostPieces * link.options().message_slot_bytes,
                  static_cast<std::size_t>(round_trip.count()) * kPieceBytesPerMicrosecond);
}

/// Calls `each` with the parts of the rest of a body, in the order of their messages.
/// @param rest of type std::span<std::byte> or std::span<std::byte const>
template <class Span, class Function>
void for_each_part(comm::Group const& link, Span rest, std::size_t piece_bytes, Function const& each) {
  if (rest.size() > piece_bytes) each(rest.subspan(piece_bytes));
  auto const size = link.options().message_slot_bytes;
  for (std::size_t begin = 0; begin < piece_bytes; begin += size) {
    each(rest.subspan(begin, std::min(size, piece_bytes - begin)));
  }
}

/// A frame on its way out, and the body that it begins.
struct Outgoing {
  Frame frame{};
  Body body{};

  Outgoing(FrameHeader const& header, Body whole, std::size_t most_bytes_in_pieces) : body(std::move(whole)) {
    frame.header = header;
    frame.header.body_bytes = body.size();
    frame.header.piece_bytes = std::min(rest().size(), most_bytes_in_pieces);
    if (!body.empty()) std::memcpy(frame.inline_body.data(), body.data(), frame.num_inline());
  }
  /// The part of the body that the first message does not hold.
  [[nodiscard]] std::span<std::byte const> rest() const {
    return std::span<std::byte const>(body).subspan(frame.num_inline());
  }
};

/// Messages that are being sent, and their memory. Thread-safe.
class SendList {
 public:
  /// Sends a frame, and the rest of its body if it has one: up to `most_bytes_in_pieces` in pieces.
  /// @throws base::OperationError if the link has failed
  void send(comm::Group& link, FrameHeader const& header, Body body, std::uint64_t match, std::uint64_t rest_match,
            std::size_t most_bytes_in_pieces) {
    // A rest that fits one piece costs less to copy than to ask for.
    auto const slot_bytes = link.options().message_slot_bytes;
    if (body.size() <= kInlineBytes + slot_bytes && !can_get(link)) most_bytes_in_pieces = slot_bytes;
    auto message = std::make_unique<Outgoing>(header, std::move(body), most_bytes_in_pieces);
    int const peer = 1 - link.rank();
    std::lock_guard const lock(mutex_);
    forget_sent();
    auto& outgoing = *message;
    // A send that throws has not begun. Once the first one has, its memory has to stay.
    sending_.push_back({.message = std::move(message), .sends = {}});
    auto& sends = sending_.back().sends;
    try {
      sends.push_back(link.send(outgoing.frame.bytes(), peer, match, kBytes));
    } catch (...) {
      sending_.pop_back();
      throw;
    }
    num_bytes_ += kFirstBytes + outgoing.body.size();
    for_each_part(link, outgoing.rest(), outgoing.frame.header.piece_bytes,
                  [&](auto part) { sends.push_back(link.send(part, peer, rest_match, kBytes)); });
  }

  /// Memory of messages that have not left.
  [[nodiscard]] std::size_t num_bytes() {
    std::lock_guard const lock(mutex_);
    forget_sent();
    return num_bytes_;
  }

 private:
  struct Sending {
    std::unique_ptr<Outgoing> message{};
    std::vector<comm::OperationPtr> sends{};
  };

  void forget_sent() {
    std::erase_if(sending_, [this](Sending const& each) {
      if (!std::ranges::all_of(each.sends, [](auto const& send) { return send->done(); })) return false;
      num_bytes_ -= kFirstBytes + each.message->body.size();
      return true;
    });
  }

  std::mutex mutex_;
  std::list<Sending> sending_;
  std::size_t num_bytes_ = 0;
};

/// A frame on its way in, and its body.
class Incoming {
 public:
  Frame frame{};
  Body body{};
  bool has_frame = false;
  bool is_complete = false;  ///< The responder sets it.

  void post(comm::Group& link, std::uint64_t match) {
    receives_.assign(1, link.receive(frame.bytes(), 1 - link.rank(), match, kBytes));
  }
  /// Have all messages come whose receives are posted? @throws base::OperationError if one has failed
  bool test(comm::Group& link) {
    while (!receives_.empty() && link.test(*receives_.back())) {
      if (auto const status = receives_.back()->status(); !status.ok()) throw base::OperationError(status);
      receives_.pop_back();
    }
    return receives_.empty();
  }
  /// Waits up to `limit` for one of the messages that test() has missed.
  void wait(comm::Group& link, std::optional<std::chrono::milliseconds> limit) {
    static_cast<void>(link.wait(*receives_.back(), limit));
  }
  /// May the header be that of a message?
  [[nodiscard]] bool has_valid_pieces() const {
    return frame.header.piece_bytes <= frame.header.body_bytes - frame.num_inline();
  }
  /// Call it when the frame has come. @returns whether the rest of the body has to be received
  bool take_frame(comm::Group& link, std::uint64_t rest_match) {
    has_frame = true;
    body.resize(frame.header.body_bytes);
    if (!body.empty()) std::memcpy(body.data(), frame.inline_body.data(), frame.num_inline());
    for_each_part(link, std::span(body).subspan(frame.num_inline()), frame.header.piece_bytes,
                  [&](auto part) { receives_.push_back(link.receive(part, 1 - link.rank(), rest_match, kBytes)); });
    return !receives_.empty();
  }

 private:
  std::vector<comm::OperationPtr> receives_{};  ///< Under way. The last one ends last, if its peer sends no large part.
};

}  // namespace headway::hybrid
