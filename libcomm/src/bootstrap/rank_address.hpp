// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bootstrap/handshake.hpp"
#include "bootstrap/host_identity.hpp"
#include "system/socket_address.hpp"

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace headway::comm {

/// Addresses of a rank and its host's identity. Published through the store or sent to rank 0.
struct RankAddress {
  InstanceId instance{};
  std::string host;                      ///< host_identity() of that rank.
  std::string local_name;                ///< Name of its abstract local socket; empty if it has none.
  std::vector<SocketAddress> addresses;  ///< IPv4 and IPv6, best first.
};

/// Text form of an address; rank_address.cpp has the format.
[[nodiscard]] std::string encode_rank_address(RankAddress const& rank_address);
/// @param origin where the text comes from, for errors
/// @throws SystemError naming `rank` and `origin` if the text is malformed
[[nodiscard]] RankAddress decode_rank_address(std::string_view text, int rank,
                                              std::string_view origin = "in the store");

/// Encodes the addresses of all ranks in rank order, without rank 0.
[[nodiscard]] std::vector<std::byte> encode_rank_addresses(std::vector<std::string> const& texts);
/// @returns (size) entries, the first one empty.
/// @throws SystemError if the body does not hold addresses for `size` ranks.
[[nodiscard]] std::vector<RankAddress> decode_rank_addresses(std::span<std::byte const> body, int size);

}  // namespace headway::comm
