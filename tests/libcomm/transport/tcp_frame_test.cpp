// SPDX-License-Identifier: Apache-2.0

// Frames of the TCP transport. SendQueue turns puts and OOB messages into a byte stream, and FrameReader turns the
// stream back, however the kernel cuts it. A bad frame must be found before anything is written.

#include "test_bytes.hpp"
#include "transport/tcp/frame_reader.hpp"
#include "transport/tcp/send_queue.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <random>
#include <string>

namespace headway::comm::tcp {
namespace {

using Bytes = std::vector<std::byte>;

/// Records the tags and OOB messages of a FrameReader.
struct Heard final : FrameHandler {
  void received(Tag tag) override { tags.push_back(tag); }
  void on_oob(std::string_view text) override { oob_messages.emplace_back(text); }
  std::vector<Tag> tags;
  std::vector<std::string> oob_messages;
};

/// Bytes that a queue sends, taken in calls of at most `bytes_per_call`.
Bytes drain(SendQueue& queue, std::size_t bytes_per_call, std::size_t pieces_per_call = 64) {
  Bytes stream;
  std::vector<iovec> pieces(pieces_per_call);
  while (!queue.empty()) {
    std::size_t left = bytes_per_call;
    std::size_t const count = queue.gather(pieces);
    for (std::size_t i = 0; i < count; ++i) {
      auto const* begin = static_cast<std::byte const*>(pieces[i].iov_base);
      std::size_t const taken = std::min(left, pieces[i].iov_len);
      stream.insert(stream.end(), begin, begin + taken);
      left -= taken;
    }
    queue.advance(bytes_per_call - left);
  }
  return stream;
}

/// Feeds `stream` in calls of at most `bytes_per_call`. @returns false at a bad frame.
bool feed(FrameReader& reader, FrameHandler& handler, std::span<std::byte const> stream, std::size_t bytes_per_call) {
  while (!stream.empty()) {
    FrameReader::Pieces pieces;
    std::size_t const count = reader.gather(pieces);
    std::size_t const limit = std::min(bytes_per_call, stream.size());
    std::size_t read = 0;
    for (std::size_t i = 0; i < count && read < limit; ++i) {
      std::size_t const taken = std::min(limit - read, pieces[i].iov_len);
      std::memcpy(pieces[i].iov_base, stream.data() + read, taken);
      read += taken;
    }
    stream = stream.subspan(read);
    if (!reader.advance(read, handler)) return false;
  }
  return true;
}

Bytes as_stream(FrameHeader const& frame) {
  auto const bytes = std::as_bytes(std::span(&frame, 1));
  return {bytes.begin(), bytes.end()};
}

TEST(FrameStream, RandomTrafficArrivesWhateverTheCallsTake) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    auto const pick = [&](std::size_t max) { return std::uniform_int_distribution<std::size_t>(0, max)(random); };
    Bytes receive_buffer(300'000), expected(receive_buffer.size());
    Bytes window(100'000), expected_window(window.size());
    std::vector<Bytes> payloads;
    std::vector<std::uint32_t> tags;
    std::vector<std::string> oob_messages;
    SendQueue queue;
    for (std::size_t put = 0; put < 40; ++put) {
      if (pick(5) == 0) {
        oob_messages.push_back(std::string(pick(300), static_cast<char>('a' + put % 26)));
        queue.push_oob(oob_messages.back());
        continue;
      }
      auto const header = test_bytes(pick(kMaxHeaderBytes), put + 1000);
      payloads.push_back(test_bytes(pick(3) == 0 ? pick(60'000) : pick(100), put));
      auto const& payload = payloads.back();
      Tag const tag{.operation = static_cast<std::uint16_t>(put)};
      tags.push_back(tag.packed());
      if (pick(2) == 0) {
        std::uint64_t const offset = pick(window.size() - payload.size());
        queue.push_put({.peer = 1, .window = 4, .offset = offset}, header, payload, tag);
        std::ranges::copy(payload, expected_window.begin() + static_cast<std::ptrdiff_t>(offset));
      } else {
        std::uint64_t const offset = pick((receive_buffer.size() - payload.size() - kHeaderBytes) / 64) * 64;
        queue.push_put({.peer = 1, .offset = offset}, header, payload, tag);
        std::ranges::copy(header, expected.begin() + static_cast<std::ptrdiff_t>(offset));
        std::ranges::copy(payload, expected.begin() + static_cast<std::ptrdiff_t>(offset + kHeaderBytes));
      }
    }
    auto const stream = drain(queue, 1 + pick(seed % 2 ? 50'000 : 100), 2 + pick(60));
    FrameReader reader(receive_buffer);
    reader.open_window(4, window);
    Heard heard;
    ASSERT_TRUE(feed(reader, heard, stream, 1 + pick(seed % 3 ? 70'000 : 40))) << reader.error() << ", seed " << seed;
    EXPECT_FALSE(reader.is_inside_frame());
    EXPECT_TRUE(same_bytes(receive_buffer, expected)) << "seed " << seed;
    EXPECT_TRUE(same_bytes(window, expected_window)) << "seed " << seed;
    EXPECT_EQ(heard.oob_messages, oob_messages);
    ASSERT_EQ(heard.tags.size(), tags.size());
    for (std::size_t i = 0; i < tags.size(); ++i) EXPECT_EQ(heard.tags[i].packed(), tags[i]);
  }
}

TEST(FrameStream, ATagIsVisibleOnlyOnceItsLastByteIsThere) {
  Bytes receive_buffer(10'000);
  auto const payload = test_bytes(5000, 1);
  SendQueue queue;
  queue.push_put({.peer = 1}, {}, payload, Tag{});
  auto const stream = drain(queue, 100'000);
  FrameReader reader(receive_buffer);
  Heard heard;
  ASSERT_TRUE(feed(reader, heard, std::span(stream).first(stream.size() - 1), 1000));
  EXPECT_TRUE(heard.tags.empty());
  EXPECT_TRUE(reader.is_inside_frame());
  ASSERT_TRUE(feed(reader, heard, std::span(stream).last(1), 1));
  EXPECT_EQ(heard.tags.size(), 1U);
}

TEST(FrameStream, LargePayloadsAreReadStraightIntoTheirPlace) {
  Bytes receive_buffer(1'000'000);
  FrameReader reader(receive_buffer);
  Heard heard;
  auto const header = as_stream({.header_bytes = 10, .offset = 128, .payload_bytes = 500'000});
  ASSERT_TRUE(feed(reader, heard, header, 1000));
  FrameReader::Pieces pieces;
  ASSERT_EQ(reader.gather(pieces), 3U);
  EXPECT_EQ(pieces[0].iov_base, receive_buffer.data() + 128);
  EXPECT_EQ(pieces[0].iov_len, 10U);
  EXPECT_EQ(pieces[1].iov_base, receive_buffer.data() + 128 + kHeaderBytes);
  EXPECT_EQ(pieces[1].iov_len, 500'000U);
}

TEST(FrameStream, ClosingAWindowStopsAFrameThatIsHalfThere) {
  for (std::size_t there : {32U, 33U, 5000U, 20'000U}) {  // Bytes that have arrived; a frame header has 32.
    Bytes receive_buffer(100), memory(20'000), after(memory.size());
    auto const payload = test_bytes(memory.size(), 2);
    SendQueue queue;
    queue.push_put({.peer = 1, .window = 7}, {}, payload, Tag{.operation = 1});
    queue.push_put({.peer = 1, .window = 7}, {}, payload, Tag{.operation = 2});
    queue.push_put({.peer = 1}, {}, {}, Tag{.operation = 3});
    auto const stream = drain(queue, 1'000'000);
    FrameReader reader(receive_buffer);
    reader.open_window(7, memory);
    Heard heard;
    ASSERT_TRUE(feed(reader, heard, std::span(stream).first(there), 100'000));
    reader.close_window(7);
    std::fill(memory.begin(), memory.end(), std::byte{0});
    ASSERT_TRUE(feed(reader, heard, std::span(stream).subspan(there), 100'000));
    EXPECT_TRUE(same_bytes(memory, after)) << there;
    ASSERT_EQ(heard.tags.size(), 1U) << there;
    EXPECT_EQ(heard.tags[0].operation, 3);
    EXPECT_EQ(reader.num_dropped(), 2U);
  }
}

/// A header that the reader must reject: by default of a put into the receive buffer of 4096 bytes. Window 3 has 1000.
struct BadFrame {
  std::string name;
  FrameHeader frame;
};

class BadFrames : public testing::TestWithParam<BadFrame> {};

TEST_P(BadFrames, AreFoundBeforeAnythingIsWritten) {
  constexpr std::size_t kReceiveBufferBytes = 4096;
  Bytes receive_buffer(kReceiveBufferBytes), window(1000);
  FrameReader reader(receive_buffer);
  reader.open_window(3, window);
  Heard heard;
  auto stream = as_stream(GetParam().frame);
  stream.resize(stream.size() + 10'000, std::byte{0x77});
  EXPECT_FALSE(feed(reader, heard, stream, 100'000));
  EXPECT_FALSE(reader.error().empty());
  EXPECT_TRUE(heard.tags.empty() && heard.oob_messages.empty());
  EXPECT_TRUE(all_zero(receive_buffer) && all_zero(window));
  EXPECT_FALSE(reader.advance(0, heard)) << "an error is final";
}

constexpr auto kMax = std::numeric_limits<std::uint64_t>::max();

INSTANTIATE_TEST_SUITE_P(
    Frames, BadFrames,
    testing::Values(BadFrame{"magic", {.magic = 1}}, BadFrame{"kind_0", {.kind = FrameKind{0}}},
                    BadFrame{"kind_3", {.kind = FrameKind{3}}}, BadFrame{"reserved", {.reserved = 1}},
                    BadFrame{"long_header", {.header_bytes = kMaxHeaderBytes + 1}},
                    BadFrame{"payload_beyond", {.offset = 0, .payload_bytes = 4096 - 63}},
                    BadFrame{"header_beyond", {.header_bytes = 1, .offset = 4096}},
                    BadFrame{"offset_between", {.offset = 65}}, BadFrame{"offset_beyond", {.offset = 4160}},
                    BadFrame{"offset_wraps", {.offset = kMax - 63, .payload_bytes = 80}},
                    BadFrame{"length_wraps", {.offset = 64, .payload_bytes = kMax - 64}},
                    BadFrame{"window_beyond", {.window = 3, .offset = 1, .payload_bytes = 1000}},
                    BadFrame{"window_offset", {.window = 3, .offset = 1001}},
                    BadFrame{"window_header", {.header_bytes = 1, .window = 3}},
                    BadFrame{"long_oob", {.kind = FrameKind::kOob, .payload_bytes = kMaxOobBytes + 1}},
                    BadFrame{"oob_with_tag", {.kind = FrameKind::kOob, .tag = 1}},
                    BadFrame{"oob_with_offset", {.kind = FrameKind::kOob, .offset = 1}}),
    [](auto const& tested) { return tested.param.name; });

TEST(SendQueue, CountsPutsAndKeepsOobMessagesApart) {
  SendQueue queue;
  auto const payload = test_bytes(100, 3);
  for (std::size_t put = 0; put < SendQueue::kMaxPuts; ++put) {
    ASSERT_FALSE(queue.is_full());
    queue.push_put({.peer = 1}, {}, payload, Tag{});
  }
  EXPECT_TRUE(queue.is_full());
  queue.push_oob("still possible");
  EXPECT_EQ(queue.advance(sizeof(FrameHeader) + 99), 0U);
  EXPECT_EQ(queue.advance(1), 1U);
  EXPECT_FALSE(queue.is_full());
  EXPECT_EQ(queue.clear(), SendQueue::kMaxPuts - 1);
  EXPECT_TRUE(queue.empty());
}

TEST(SendQueue, LetsGoOfPayloadsWithoutBreakingTheStream) {
  // A put in flight still delivers its correct rest. Later puts are dropped, and OOB messages stay.
  for (std::size_t const num_gone :
       {std::size_t{0}, std::size_t{1}, sizeof(FrameHeader) + 40, sizeof(FrameHeader) + 99}) {
    auto payload = test_bytes(100, 3);
    Bytes const original = payload;
    auto const fill = [&](SendQueue& queue) {
      for (int put = 0; put < 3; ++put) queue.push_put({.peer = 1}, {}, payload, Tag{});
      queue.push_oob("the group has failed");
    };
    SendQueue whole, queue;
    fill(whole);
    fill(queue);
    Bytes stream = drain(whole, 1000);
    stream.resize(num_gone);
    EXPECT_EQ(queue.advance(num_gone), 0U);
    EXPECT_EQ(queue.let_go_of_payloads(), num_gone == 0 ? 3U : 2U);
    std::ranges::fill(payload, std::byte{0xee});
    Bytes const rest = drain(queue, 7);
    stream.insert(stream.end(), rest.begin(), rest.end());

    Bytes receive_buffer(4096);
    FrameReader reader(receive_buffer);
    Heard heard;
    ASSERT_TRUE(feed(reader, heard, stream, 64));
    EXPECT_EQ(heard.oob_messages, std::vector<std::string>{"the group has failed"});
    EXPECT_EQ(heard.tags.size(), num_gone == 0 ? 0U : 1U);
    bool const is_right = std::ranges::equal(std::span(receive_buffer).subspan(kHeaderBytes, 100), original);
    EXPECT_EQ(is_right, num_gone != 0);
  }
}

}  // namespace
}  // namespace headway::comm::tcp
