#pragma once

#include <cstddef>
#include <memory>

namespace headway::comm {

/// Page-aligned memory for blocks of exchanges. Any memory serves, but a device that must register what it reads and
/// writes (RDMA) keeps this registered, for groups to come as well, and any other only while it is used: worth
/// having for blocks from 16 KiB that are used again and again. Contents are undefined. What is freed is kept for the
/// next allocations of that size, up to 1 GiB. Thread-safe.
/// @throws SystemError naming the size.
[[nodiscard]] std::shared_ptr<std::byte> allocate(std::size_t num_bytes);

}  // namespace headway::comm
