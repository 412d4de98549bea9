// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>

namespace headway::comm {

/// Allocates page-aligned memory for blocks of exchanges. Any memory serves. But RDMA must register what it reads and
/// writes: it keeps this memory registered, also for later groups, and other memory only during an operation.
/// Worthwhile for blocks from 16 KiB on that are used repeatedly. Contents are undefined. Freed blocks are kept for
/// later allocations of the same size, up to 1 GiB. Thread-safe.
/// @throws SystemError that names the size.
[[nodiscard]] std::shared_ptr<std::byte> allocate(std::size_t num_bytes);

}  // namespace headway::comm
