// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace headway::base {

/// CRC-32 as in zlib, gzip and PNG (polynomial 0x04C11DB7, reflected). Detects accidental damage, but no forgery.
/// Records of checkpoints carry it.
/// @param so_far CRC of the preceding bytes; 0 if there are none. crc32("ab") == crc32("b", crc32("a")).
[[nodiscard]] std::uint32_t crc32(std::span<std::byte const> bytes, std::uint32_t so_far = 0);

}  // namespace headway::base
