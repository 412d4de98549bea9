#pragma once

#include "rendezvous/handshake.hpp"
#include "rendezvous/host_identity.hpp"
#include "rendezvous/socket_address.hpp"

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace headway::comm {

/// Addresses of a rank and its host's identity. Published through the store or sent to rank 0.
struct Contact {
  InstanceId instance{};
  std::string host;                      ///< host_identity() of that rank.
  std::string local_name;                ///< Name of its abstract local socket; empty if it has none.
  std::vector<SocketAddress> addresses;  ///< IPv4 and IPv6, best first.
};

[[nodiscard]] std::string encode_contact(Contact const& contact);
/// @throws SystemError naming `rank` if the text is malformed.
[[nodiscard]] Contact decode_contact(std::string_view text, int rank);

/// Encodes the contacts of all ranks in rank order, without rank 0.
[[nodiscard]] std::vector<std::byte> encode_contacts(std::vector<std::string> const& texts);
/// @returns (size) entries, the first one empty.
/// @throws SystemError if the body does not hold contacts for `size` ranks.
[[nodiscard]] std::vector<Contact> decode_contacts(std::span<std::byte const> body, int size);

}  // namespace headway::comm
