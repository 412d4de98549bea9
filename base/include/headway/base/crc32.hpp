// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace headway::base {

/// CRC-32 as in zlib, gzip and PNG (polynomial 0x04C11DB7, reflected). Finds accidental damage, no forgery.
/// @param so_far that of the bytes before, to go on; 0 at the begin. crc32("ab") == crc32("b", crc32("a")).
[[nodiscard]] std::uint32_t crc32(std::span<std::byte const> bytes, std::uint32_t so_far = 0);

}  // namespace headway::base
