// SPDX-License-Identifier: Apache-2.0

// Fuzzes FrameReader, the reader of the tcp transport that writes payloads to their places, with arbitrary bytes.
//
// A frame is a FrameHeader, then for a put `header_bytes` of the put's own header, and the payload. A put goes to an
// offset in the receive buffer (window 0; there its own header precedes the payload) or in a window, memory that the
// receiver has opened for the peer. The payload of an OOB (out-of-band) message is a text.
//
// Idea: the input is split into a stream of frames and a control part. The control part chooses how many bytes each
// read takes, and when a window is opened or closed. In a quarter of the cases the stream is the raw input.
// Otherwise the input chooses frames whose headers mostly pass the first checks, so that the code behind them is
// reached.
//
// Example: first byte 4 selects the raw mode (4 % 4 = 0). A quarter of the input becomes the control part, and the rest
// is the stream. First byte 5 selects plausible frames, and half of the input becomes the control part.
//
// Invariants: no write outside of the receive buffer and the windows, and none after close_window(); each buffer is
// an allocation of its own, so AddressSanitizer detects it. While bytes are left, the reader asks for more. A reader
// that failed has an error text and stays failed. An OOB message has at most kMaxOobBytes.
// Complexity: linear in the length of the stream, at most some 200,000 bytes.

#include "transport/tcp/frame_reader.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

using namespace headway::comm;
using namespace headway::comm::tcp;

constexpr std::size_t kReceiveBufferBytes = 1000;
constexpr std::size_t kWindowBytes = 300;
constexpr WindowId kNumWindows = 3;

/// Counts received frames and bytes of OOB messages.
struct CountingHandler final : FrameHandler {
  void received(Tag) override { ++count; }
  void on_oob(std::string_view text) override {
    if (text.size() > kMaxOobBytes) std::abort();
    count += text.size();
  }
  std::size_t count = 0;
};

/// Choices made by the input; zeros at its end.
class Choices {
 public:
  explicit Choices(std::span<std::byte const> bytes) : bytes_(bytes) {}
  [[nodiscard]] bool empty() const { return bytes_.empty(); }
  /// A number from 0 to `max`.
  std::size_t next(std::size_t max) {
    if (bytes_.empty()) return 0;
    auto const value = std::to_integer<std::size_t>(bytes_.front());
    bytes_ = bytes_.subspan(1);
    return value * (max + 1) / 256;
  }
  std::span<std::byte const> take(std::size_t num_bytes) {
    auto const taken = bytes_.first(std::min(num_bytes, bytes_.size()));
    bytes_ = bytes_.subspan(taken.size());
    return taken;
  }

 private:
  std::span<std::byte const> bytes_;
};

/// Makes a stream whose frames mostly pass the first checks.
std::vector<std::byte> plausible_stream(Choices& choices) {
  std::vector<std::byte> stream;
  while (!choices.empty() && stream.size() < 200'000) {
    FrameHeader frame;
    frame.kind = static_cast<FrameKind>(1 + choices.next(1));
    frame.window = static_cast<WindowId>(choices.next(kNumWindows));
    bool const is_oob = frame.kind == FrameKind::kOob;
    if (is_oob) frame.window = 0;
    frame.header_bytes = static_cast<std::uint8_t>(frame.window == 0 && !is_oob ? choices.next(50) : 0);
    // kHeaderBytes: the room for a put's own header in front of its payload.
    frame.offset = is_oob ? 0 : choices.next(20) * kHeaderBytes;
    frame.payload_bytes = choices.next(255) * (choices.next(3) == 0 ? 70 : 2);
    if (choices.next(255) == 255) {  // Any bytes as the FrameHeader, but with the right magic number.
      auto const raw = choices.take(sizeof(frame));
      if (!raw.empty()) std::memcpy(&frame, raw.data(), raw.size());
      frame.magic = kFrameMagic;
    }
    auto const bytes = std::as_bytes(std::span(&frame, 1));
    stream.insert(stream.end(), bytes.begin(), bytes.end());
    stream.resize(stream.size() + frame.header_bytes + std::min<std::uint64_t>(frame.payload_bytes, 20'000),
                  std::byte{0x5a});
  }
  return stream;
}

void read_stream(std::span<std::byte const> stream, Choices choices) {
  std::vector<std::byte> receive_buffer(kReceiveBufferBytes);
  std::vector<std::vector<std::byte>> windows(kNumWindows + 1);
  FrameReader reader(receive_buffer);
  CountingHandler handler;
  while (!stream.empty()) {
    auto const window = static_cast<WindowId>(1 + choices.next(kNumWindows - 1));
    if (choices.next(3) == 1) {
      windows[window].resize(kWindowBytes);
      reader.open_window(window, windows[window]);
    } else if (choices.next(3) == 1) {
      reader.close_window(window);
      std::vector<std::byte>().swap(windows[window]);  // From now on a write there is a use after free.
    }
    FrameReader::Pieces pieces;
    std::size_t const count = reader.gather(pieces);
    std::size_t const limit = std::min<std::size_t>(stream.size(), 1 + choices.next(255) * (1 + choices.next(99)));
    std::size_t num_read = 0;
    for (std::size_t i = 0; i < count && num_read < limit; ++i) {
      std::size_t const taken = std::min(limit - num_read, pieces[i].iov_len);
      std::memcpy(pieces[i].iov_base, stream.data() + num_read, taken);
      num_read += taken;
    }
    if (num_read == 0) std::abort();  // A reader that asks for nothing would hang.
    stream = stream.subspan(num_read);
    if (!reader.advance(num_read, handler)) {
      if (reader.error().empty() || reader.advance(0, handler)) std::abort();
      return;
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  auto const input = std::as_bytes(std::span(data, size));
  if (input.size() < 2) return 0;
  Choices choices(input.subspan(1));
  if (std::to_integer<int>(input[0]) % 4 == 0) {
    auto const control = choices.take(input.size() / 4);
    read_stream(choices.take(input.size()), Choices(control));
  } else {
    auto const control = choices.take(input.size() / 2);
    read_stream(plausible_stream(choices), Choices(control));
  }
  return 0;
}
