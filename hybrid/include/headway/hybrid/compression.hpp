// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace headway::hybrid {

/// Compression of messages. All roles of a job have the same: the first trainer tells it with the tables.
struct Compression {
  /// Ids to embedding workers, and keys to servers. It loses nothing.
  bool ids = false;
  /// Embeddings and gradients are float16 with an exponent for each block of a row (kernels/half_blocks.hpp), and bags
  /// of the same one id share an embedding on the way to dense workers. It rounds values.
  bool values = false;

  bool operator==(Compression const&) const = default;
};
[[nodiscard]] inline std::string to_string(Compression const& compression) {
  auto const word = [](bool is_on) { return is_on ? std::string("on") : std::string("off"); };
  return "compression of ids " + word(compression.ids) + " and of values " + word(compression.values);
}

/// Bytes of messages with ids and values, without their compression and as they were sent.
struct MessageBytes {
  std::uint64_t plain_ids = 0, sent_ids = 0;
  std::uint64_t plain_values = 0, sent_values = 0;
};

}  // namespace headway::hybrid
