// SPDX-License-Identifier: Apache-2.0

// Limits of the RDMA transport. They trade memory for traffic: credits and requests bound what is in flight to one
// peer, and staging memory bounds what is copied. docs/design/verbs_transport.md has the measurements.

#pragma once

#include <cstddef>
#include <cstdint>

namespace headway::comm::verbs {

/// Credits: notifications in flight per pair of ranks. Each consumes one receive. Fewer if the device has no room.
inline constexpr std::uint32_t kMaxCredits = 256;
/// Consumed receives are posted again in batches of this size.
inline constexpr std::size_t kReceivesPerPost = 16;
inline constexpr std::uint32_t kSendRequests = 128;  ///< Send requests in flight per queue pair.
/// Number of these that are reserved for credits, which must go even while puts wait.
inline constexpr std::uint32_t kReservedRequests = 8;
/// One of this many requests asks for a completion, which covers the earlier ones.
inline constexpr std::uint64_t kRequestsPerSignal = 16;
/// Wanted; the device may grant less. Requests up to this size carry their bytes inline.
inline constexpr std::uint32_t kInlineBytes = 256;
inline constexpr std::size_t kMaxCopiedBytes = 64 * 1024;  ///< Larger payloads are registered and read in place.
/// From this size on, payloads in memory that stays registered are read in place too.
inline constexpr std::size_t kMinInPlaceBytes = 16 * 1024;
inline constexpr std::size_t kStagingBytes = 512 * 1024;           ///< Memory for copied payloads per queue pair.
inline constexpr int kMaxRails = 8;                                ///< Queue pairs per peer.
inline constexpr std::size_t kWindows = 64;                        ///< Windows open to one peer at a time.
inline constexpr std::uint64_t kReceiveLabel = ~std::uint64_t{0};  ///< wr_id of all receives; they have no buffer.

}  // namespace headway::comm::verbs
