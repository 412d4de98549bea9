// SPDX-License-Identifier: Apache-2.0

// Messages of requests and answers.
//
// Both consist of a first message of fixed size, and of a second one if the body does not fit. The receiver of the
// first message learns from it how large the second one is.
//
// Example: a body of 3,000 bytes. The first message has the header (48 bytes) and the first 976 bytes of the body. The
// second one has the other 2,024 bytes, and the sequence number in its `match`.
//
// Integers have 64 bits, in the byte order of the host. The handshake of a group refuses peers of another byte order.

#pragma once

#include "headway/comm/group.hpp"
#include "headway/hybrid/body.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <list>
#include <memory>
#include <mutex>
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
  std::uint64_t reserved = 0;
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

/// A frame on its way out, and the body that it begins.
struct Outgoing {
  Frame frame{};
  Body body{};

  Outgoing(FrameHeader const& header, Body whole) : body(std::move(whole)) {
    frame.header = header;
    frame.header.body_bytes = body.size();
    if (!body.empty()) std::memcpy(frame.inline_body.data(), body.data(), frame.num_inline());
  }
};

/// Messages that are being sent, and their memory. Thread-safe.
class SendList {
 public:
  /// Sends a frame, and the rest of its body if it has one.
  /// @throws base::OperationError if the link has failed
  void send(comm::Group& link, FrameHeader const& header, Body body, std::uint64_t match, std::uint64_t rest_match) {
    auto message = std::make_unique<Outgoing>(header, std::move(body));
    int const peer = 1 - link.rank();
    std::lock_guard const lock(mutex_);
    forget_sent();
    auto& outgoing = *message;
    // A send that throws has not begun. Once the first one has, its memory has to stay.
    sending_.push_back({.message = std::move(message), .first = nullptr, .rest = nullptr});
    auto& sending = sending_.back();
    try {
      sending.first = link.send(outgoing.frame.bytes(), peer, match, kBytes);
    } catch (...) {
      sending_.pop_back();
      throw;
    }
    num_bytes_ += kFirstBytes + outgoing.body.size();
    auto const rest = std::span<std::byte const>(outgoing.body).subspan(outgoing.frame.num_inline());
    if (!rest.empty()) sending.rest = link.send(rest, peer, rest_match, kBytes);
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
    comm::OperationPtr first{}, rest{};
  };

  void forget_sent() {
    std::erase_if(sending_, [this](Sending const& each) {
      if (!each.first->done() || (each.rest != nullptr && !each.rest->done())) return false;
      num_bytes_ -= kFirstBytes + each.message->body.size();
      return true;
    });
  }

  std::mutex mutex_;
  std::list<Sending> sending_;
  std::size_t num_bytes_ = 0;
};

/// A frame on its way in, and its body. `receive` is the operation under way.
struct Incoming {
  Frame frame{};
  Body body{};
  comm::OperationPtr receive{};
  bool has_frame = false;
  bool is_complete = false;  ///< The responder sets it.

  void post(comm::Group& link, std::uint64_t match) {
    receive = link.receive(frame.bytes(), 1 - link.rank(), match, kBytes);
  }
  /// Call it when the frame has come. @returns whether the rest of the body has to be received
  bool take_frame(comm::Group& link, std::uint64_t rest_match) {
    has_frame = true;
    body.resize(frame.header.body_bytes);
    if (!body.empty()) std::memcpy(body.data(), frame.inline_body.data(), frame.num_inline());
    auto const rest = std::span(body).subspan(frame.num_inline());
    if (rest.empty()) return false;
    receive = link.receive(rest, 1 - link.rank(), rest_match, kBytes);
    return true;
  }
};

}  // namespace headway::hybrid
