// SPDX-License-Identifier: Apache-2.0

// Wire format of the bootstrap: little-endian integers of 4 bytes, raw bytes, and texts with their length before
// them. Everything that arrives may come from a process that is not authenticated, so the reader checks bounds and
// limits before it allocates.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace headway::comm {

/// Serialises little-endian integers, byte strings and length-prefixed texts.
class ByteWriter {
 public:
  ByteWriter& integer(std::uint32_t value) {
    for (int shift = 0; shift < 32; shift += 8) bytes_ += static_cast<char>(value >> shift);
    return *this;
  }
  ByteWriter& raw(std::span<std::byte const> bytes) {
    bytes_.append(reinterpret_cast<char const*>(bytes.data()), bytes.size());
    return *this;
  }
  ByteWriter& text(std::string_view text) {
    return integer(static_cast<std::uint32_t>(text.size())).raw(std::as_bytes(std::span(text)));
  }
  [[nodiscard]] std::vector<std::byte> take() {
    auto const bytes = std::as_bytes(std::span(bytes_));
    return {bytes.begin(), bytes.end()};
  }

 private:
  std::string bytes_;  // A string, because GCC 12 reports false overflows when bytes are inserted into a vector.
};

/// Parses the output of ByteWriter. Every read is bounds-checked. From the first read that does not fit, ok() stays
/// false and reads return zeros.
class ByteReader {
 public:
  explicit ByteReader(std::span<std::byte const> bytes) : bytes_(bytes) {}

  /// Little-endian, 4 bytes.
  std::uint32_t integer() {
    std::uint32_t value = 0;
    auto const raw = take(4);
    for (std::size_t i = 0; i < raw.size(); ++i) value |= std::to_integer<std::uint32_t>(raw[i]) << (8 * i);
    return value;
  }
  void raw(std::span<std::byte> out) {
    auto const raw = take(out.size());
    if (!raw.empty()) std::memcpy(out.data(), raw.data(), raw.size());
  }
  /// Text with a 4-byte length before it. A length above `max_bytes` is an error.
  std::string text(std::size_t max_bytes) {
    std::uint32_t const length = integer();
    if (length > max_bytes) ok_ = false;
    auto const raw = take(length);
    return {reinterpret_cast<char const*>(raw.data()), raw.size()};
  }
  [[nodiscard]] bool ok() const { return ok_; }
  /// Number of unread bytes.
  [[nodiscard]] std::size_t rest() const { return bytes_.size(); }
  /// True if every read fit and no byte is left.
  [[nodiscard]] bool complete() const { return ok_ && bytes_.empty(); }

 private:
  std::span<std::byte const> take(std::size_t num_bytes) {
    if (!ok_ || num_bytes > bytes_.size()) {
      ok_ = false;
      return {};
    }
    auto const taken = bytes_.first(num_bytes);
    bytes_ = bytes_.subspan(num_bytes);
    return taken;
  }

  std::span<std::byte const> bytes_;
  bool ok_ = true;
};

}  // namespace headway::comm
