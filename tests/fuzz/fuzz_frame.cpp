// Fuzzes FrameReader, the reader of the tcp engine that puts frames in place, with arbitrary bytes of a peer.
//
// Idea: the input is split into a stream of frames and a control part. The control part chooses how many bytes each
// read takes, and when a segment is exposed or withdrawn. In a quarter of the cases the stream is the raw input.
// Otherwise the input chooses frames whose headers mostly pass the first checks, so that the code behind them is
// reached.
//
// Example: first byte 4 selects the raw mode (4 % 4 = 0). A quarter of the input becomes the control part, and the rest
// is the stream. First byte 5 selects plausible frames, and half of the input becomes the control part.
//
// Invariants: no write outside of the landing segment and the exposed ones, and none after withdraw(); each buffer is
// an allocation of its own, so AddressSanitizer detects it. While bytes are left, the reader asks for more. A reader
// that failed has an error text and stays failed. A notice has at most kMaxNoticeBytes.
// Complexity: linear in the length of the stream, at most some 200,000 bytes.

#include "engines/tcp/frame_reader.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

using namespace headway::comm;
using namespace headway::comm::tcp;

constexpr std::size_t kLandingBytes = 1000;
constexpr std::size_t kExposedBytes = 300;
constexpr SegmentId kExposedSegments = 3;

/// Counts landed frames and bytes of notices.
struct CountingHandler final : FrameHandler {
  void landed(Tag) override { ++count; }
  void notice(std::string_view text) override {
    if (text.size() > kMaxNoticeBytes) std::abort();
    count += text.size();
  }
  std::size_t count = 0;
};

/// Choices made by the input; zeros at its end.
class Choices {
 public:
  explicit Choices(std::span<std::byte const> bytes) : bytes_(bytes) {}
  [[nodiscard]] bool empty() const { return bytes_.empty(); }
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
    frame.segment = static_cast<SegmentId>(choices.next(kExposedSegments));
    bool const is_notice = frame.kind == FrameKind::kNotice;
    if (is_notice) frame.segment = 0;
    frame.header_bytes = static_cast<std::uint8_t>(frame.segment == 0 && !is_notice ? choices.next(50) : 0);
    frame.offset = is_notice ? 0 : choices.next(20) * kHeaderBytes;
    frame.payload_bytes = choices.next(255) * (choices.next(3) == 0 ? 70 : 2);
    if (choices.next(255) == 255) {
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

// Every buffer is an allocation of its own, so AddressSanitizer detects an access beyond its end.
void read_stream(std::span<std::byte const> stream, Choices choices) {
  std::vector<std::byte> landing(kLandingBytes);
  std::vector<std::vector<std::byte>> exposed(kExposedSegments + 1);
  FrameReader reader(landing);
  CountingHandler handler;
  while (!stream.empty()) {
    auto const segment = static_cast<SegmentId>(1 + choices.next(kExposedSegments - 1));
    if (choices.next(3) == 1) {
      exposed[segment].resize(kExposedBytes);
      reader.expose(segment, exposed[segment]);
    } else if (choices.next(3) == 1) {
      reader.withdraw(segment);
      std::vector<std::byte>().swap(exposed[segment]);  // From now on a write there is a use after free.
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
