#pragma once

#include <cstddef>
#include <cstdint>

namespace headway::comm::verbs {

/// Notifications in flight per pair of ranks, each of which takes a receive; fewer where the device has no room.
inline constexpr std::uint32_t kMaxCredits = 256;
inline constexpr std::size_t kReceivesPerPost = 16;
inline constexpr std::uint32_t kSendRequests = 128;    ///< Of a queue pair.
inline constexpr std::uint32_t kReservedRequests = 8;  ///< For credits, which must go when puts have to wait.
inline constexpr std::uint64_t kRequestsPerSignal = 16;
inline constexpr std::uint32_t kInlineBytes = 256;          ///< Wanted: such requests carry their bytes.
inline constexpr std::size_t kMaxCopiedBytes = 64 * 1024;   ///< Larger payloads are registered and read in place,
inline constexpr std::size_t kMinInPlaceBytes = 16 * 1024;  ///< and from this size on those that stay registered.
inline constexpr std::size_t kStagingBytes = 512 * 1024;    ///< Per queue pair.
inline constexpr int kMaxRails = 8;                         ///< Queue pairs to one peer.
inline constexpr std::size_t kWindows = 64;                 ///< Segments exposed to a peer at a time.
inline constexpr std::uint64_t kReceiveLabel = ~std::uint64_t{0};  ///< wr_id of all receives: they have no buffer.

}  // namespace headway::comm::verbs
