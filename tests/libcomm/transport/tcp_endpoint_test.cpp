// SPDX-License-Identifier: Apache-2.0

// The TCP endpoint against peers that the test plays by hand, byte by byte.
//
// So it can send what a correct peer never would: a frame that leaves its window, half a frame and then the end of
// the stream, nothing at all. Only that peer may be lost, with a reason that says what it did.

#include "recording_sink.hpp"
#include "test_bytes.hpp"
#include "transport/tcp/endpoint.hpp"

#include <gtest/gtest.h>

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstring>
#include <tuple>
#include <utility>

namespace headway::comm {
namespace {

constexpr std::size_t kReceiveBufferBytes = 64 * 1024;
constexpr auto kPatience = std::chrono::seconds(20);

/// Rank 0 of three. The test plays ranks 1 and 2 by hand.
class TcpEndpointTest : public testing::Test {
 protected:
  TcpEndpointTest() {
    std::vector<ControlSocket> control_sockets(3);
    for (std::size_t peer : {1U, 2U}) {
      int fds[2] = {-1, -1};
      EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
      control_sockets[peer].fd = base::FileDescriptor(fds[0]);
      (peer == 1 ? peer_1_ : peer_2_) = base::FileDescriptor(fds[1]);
    }
    endpoint_ = std::make_unique<TcpEndpoint>(0, 3, std::move(control_sockets),
                                              std::make_unique<AnonymousMapping>(kReceiveBufferBytes));
  }

  template <typename Predicate>
  bool poll_until(Predicate done) {
    for (Deadline const deadline = Clock::now() + kPatience; !done();) {
      if (Clock::now() > deadline) return false;
      endpoint_->poll(sink_);
    }
    return true;
  }

  static void send_bytes(base::FileDescriptor const& socket, std::span<std::byte const> bytes) {
    ASSERT_EQ(::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }
  static void send_frame(base::FileDescriptor const& socket, tcp::FrameHeader const& frame) {
    send_bytes(socket, std::as_bytes(std::span(&frame, 1)));
  }

  std::string loss_of(int peer) const {
    for (auto const& [lost, reason] : sink_.losses()) {
      if (lost == peer) return reason;
    }
    return "";
  }

  base::FileDescriptor peer_1_, peer_2_;
  std::unique_ptr<TcpEndpoint> endpoint_;
  RecordingSink sink_;
};

TEST_F(TcpEndpointTest, ABadFrameLosesItsPeerWithAReasonAndNoOtherPeer) {
  send_frame(peer_1_, {.offset = kReceiveBufferBytes, .payload_bytes = 1});
  ASSERT_TRUE(poll_until([&] { return sink_.losses_of(1) == 1; }));
  EXPECT_EQ(loss_of(1), "it sent a frame that leaves its window");
  EXPECT_EQ(endpoint_->num_bad_frames(), 1U);
  send_frame(peer_2_, {.tag = Tag{.operation = 5}.packed()});
  EXPECT_TRUE(poll_until([&] { return sink_.has(2, Tag{.operation = 5}); }));
  EXPECT_EQ(sink_.losses().size(), 1U);
}

TEST_F(TcpEndpointTest, APeerThatEndsInTheMiddleOfAFrameIsSaidToHave) {
  send_frame(peer_1_, {.payload_bytes = 100});
  peer_1_.reset();
  ASSERT_TRUE(poll_until([&] { return sink_.losses_of(1) == 1; }));
  EXPECT_EQ(loss_of(1), "it closed the connection in the middle of a message");
  EXPECT_EQ(sink_.tags_from(1), 0U);
}

TEST_F(TcpEndpointTest, WhatAPeerSentBeforeItClosedIsReadThoughSendingToItFails) {
  send_frame(peer_1_, {.tag = Tag{.operation = 1}.packed()});
  tcp::FrameHeader const message{.kind = tcp::FrameKind::kOob, .payload_bytes = 7};
  send_frame(peer_1_, message);
  send_bytes(peer_1_, std::as_bytes(std::span("goodbye", 7)));
  peer_1_.reset();
  auto const payload = test_bytes(1000, 1);
  ASSERT_TRUE(endpoint_->put({.peer = 1}, {}, payload, Tag{}).ok());
  endpoint_->submit();
  EXPECT_EQ(endpoint_->flushed(1), 1U) << "the source of a put that cannot be sent is free";
  ASSERT_TRUE(poll_until([&] { return sink_.losses_of(1) == 1; }));
  EXPECT_TRUE(sink_.has(1, Tag{.operation = 1}));
  ASSERT_EQ(sink_.oob_messages().size(), 1U);
  EXPECT_EQ(sink_.oob_messages()[0].second, "goodbye");
  Status const status = endpoint_->put({.peer = 1}, {}, payload, Tag{});
  EXPECT_EQ(status.code(), StatusCode::kPeerLost);
  EXPECT_NE(status.message().find("rank 1"), std::string_view::npos);
}

TEST_F(TcpEndpointTest, SmallPutsBetweenTwoSubmitsTravelInOneCall) {
  for (std::uint16_t put = 0; put < 20; ++put) {
    ASSERT_TRUE(endpoint_->put({.peer = 1}, test_bytes(16, put), {}, Tag{.operation = put}).ok());
  }
  std::byte none;
  EXPECT_EQ(::recv(peer_1_.get(), &none, 1, MSG_DONTWAIT | MSG_PEEK), -1) << "nothing leaves before submit()";
  endpoint_->submit();
  std::vector<std::byte> received(100'000);
  // A local stream socket keeps the bytes of one write together. A frame header has 32 bytes, a header of a put 16.
  EXPECT_EQ(::recv(peer_1_.get(), received.data(), received.size(), MSG_DONTWAIT), 20 * (32 + 16));
  EXPECT_EQ(endpoint_->flushed(1), 20U);
}

TEST_F(TcpEndpointTest, APeerThatDoesNotReadFillsItsOwnQueueOnly) {
  auto const payload = test_bytes(32 * 1024, 1);
  std::uint64_t num_put = 0;
  while (true) {
    Status const status = endpoint_->put({.peer = 1}, {}, payload, Tag{});
    if (!status.ok()) {
      EXPECT_EQ(status.code(), StatusCode::kWouldBlock);
      break;
    }
    ++num_put;
    endpoint_->submit();
    ASSERT_LT(num_put, 10'000U);
  }
  EXPECT_EQ(endpoint_->put_count(1), num_put);
  EXPECT_LT(endpoint_->flushed(1), num_put);
  ASSERT_TRUE(endpoint_->put({.peer = 2}, {}, payload, Tag{}).ok());
  endpoint_->submit();
  EXPECT_EQ(endpoint_->flushed(2), 1U);

  std::vector<std::byte> drained(1 << 20);
  EXPECT_TRUE(poll_until([&] {
    while (::recv(peer_1_.get(), drained.data(), drained.size(), MSG_DONTWAIT) > 0) continue;
    return endpoint_->flushed(1) == num_put;
  }));
}

TEST_F(TcpEndpointTest, AnIdleEndpointHasNothingReadable) {
  for (int const fd : {endpoint_->control_fd(), endpoint_->activity_fd()}) {
    pollfd entry{.fd = fd, .events = POLLIN, .revents = 0};
    EXPECT_EQ(::poll(&entry, 1, 50), 0);
  }
}

TEST_F(TcpEndpointTest, WhatCannotBeDoneIsAUsageError) {
  std::byte local[8];
  EXPECT_THROW(static_cast<void>(endpoint_->get(1, 0, local)), UsageError);
  EXPECT_THROW(endpoint_->open_window(1, kReceiveBuffer, local), UsageError);
  EXPECT_THROW(endpoint_->open_window(0, 1, local), UsageError);
  EXPECT_THROW(static_cast<void>(endpoint_->put({.peer = 1}, test_bytes(kMaxHeaderBytes + 1, 1), {}, Tag{})),
               UsageError);
  endpoint_->send_oob(0, "to myself: dropped");
  endpoint_->send_oob(7, "to nobody: dropped");
}

/// A connection over the loopback interface: the two ends.
std::pair<base::FileDescriptor, base::FileDescriptor> tcp_connection() {
  base::FileDescriptor const listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  EXPECT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
  EXPECT_EQ(::listen(listener.get(), 1), 0);
  EXPECT_EQ(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
  base::FileDescriptor one(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::connect(one.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
  base::FileDescriptor other(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  EXPECT_TRUE(other.valid());
  return {std::move(one), std::move(other)};
}

/// Receives until the stream ends. @returns whether it ended in order, rather than by a reset.
bool ends_in_order(base::FileDescriptor const& socket) {
  std::vector<std::byte> dropped(1 << 20);
  for (;;) {
    ssize_t const count = ::recv(socket.get(), dropped.data(), dropped.size(), 0);
    if (count <= 0) return count == 0;
  }
}

TEST(TcpEndpointEnd, APeerThatDoesNotReadDoesNotCostAnotherPeerItsData) {
  std::vector<ControlSocket> control_sockets(3);
  std::vector<base::FileDescriptor> peers(3);
  for (std::size_t const peer : {1U, 2U}) {
    std::tie(control_sockets[peer].fd, peers[peer]) = tcp_connection();
  }
  auto endpoint = std::make_unique<TcpEndpoint>(0, 3, std::move(control_sockets),
                                                std::make_unique<AnonymousMapping>(kReceiveBufferBytes));
  auto const payload = test_bytes(32 * 1024, 1);
  for (int const peer : {1, 2}) {  // More than a peer's kernel takes before the peer reads.
    while (endpoint->put({.peer = peer}, {}, payload, Tag{}).ok()) endpoint->submit();
  }
  // The endpoint never reads this. A socket that is closed with unread input is reset, and its data is lost.
  ASSERT_EQ(::send(peers[2].get(), "unread", 6, MSG_NOSIGNAL), 6);
  endpoint.reset();
  EXPECT_TRUE(ends_in_order(peers[2]));
}

}  // namespace
}  // namespace headway::comm
