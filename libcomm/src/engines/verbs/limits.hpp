#pragma once

#include <cstddef>
#include <cstdint>

namespace headway::comm::verbs {

inline constexpr std::uint64_t kCredits = 64;  ///< Notifications in flight per pair of ranks; each takes a receive.
inline constexpr std::uint64_t kCreditsPerReport = kCredits / 2;   ///< A receiver that has taken so many says so,
inline constexpr std::uint64_t kUrgentCredits = kCredits * 3 / 4;  ///< and if so many, before its caller can put.
inline constexpr std::size_t kReceivesPerPost = 16;
inline constexpr std::uint32_t kSendRequests = 128;
inline constexpr std::uint32_t kReservedRequests = 8;  ///< For credits, which must go when puts have to wait.
inline constexpr std::uint64_t kRequestsPerSignal = 16;
inline constexpr std::uint32_t kInlineBytes = 256;         ///< Wanted: such requests carry their bytes.
inline constexpr std::size_t kMaxCopiedBytes = 64 * 1024;  ///< Larger payloads are registered and read in place.
inline constexpr std::size_t kStagingBytes = 512 * 1024;   ///< Per peer.
inline constexpr std::size_t kCreditWordBytes = 64;        ///< A cache line for each peer's count.
inline constexpr std::uint64_t kReceiveLabel = ~std::uint64_t{0};  ///< wr_id of all receives: they have no buffer.

}  // namespace headway::comm::verbs
