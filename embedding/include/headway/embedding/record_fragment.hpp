// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/embedding/record_import.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace headway::embedding {

/// All records of one table in a range of virtual buckets, the ranges of key hashes by which ranks divide keys
/// (routing.hpp). It is the unit of a state_dict(). record_fragment.cpp has its format as bytes.
struct RecordFragment {
  std::uint32_t routing_version = 0;  ///< Version of the mapping from keys to buckets.
  std::uint64_t updates = 0;          ///< Optimizer steps of the table.
  std::uint32_t first_bucket = 0, end_bucket = 0;
  std::uint32_t table = 0;      ///< Key::table
  RecordColumns rows, pending;  ///< Keys with their rows; keys that wait for a row.
};

/// Number of bytes that encode() writes.
[[nodiscard]] std::size_t encoded_bytes(RecordFragment const& fragment);
/// @param bytes (encoded_bytes()) aligned to 8 bytes
/// @throws base::UsageError if columns have different lengths
void encode(RecordFragment const& fragment, std::span<std::byte> bytes);
/// @param bytes aligned to 8 bytes; the columns are views of them
/// @throws base::UsageError if they are of another format, truncated or altered
[[nodiscard]] RecordFragment decode(std::span<std::byte const> bytes);

}  // namespace headway::embedding
