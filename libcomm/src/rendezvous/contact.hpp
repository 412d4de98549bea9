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

/// How a rank can be reached; what it publishes through the store.
struct Contact {
  InstanceId instance{};
  std::string host;                      ///< host_identity() there.
  std::string local_name;                ///< Abstract local socket; empty: none.
  std::vector<SocketAddress> addresses;  ///< IPv4 and IPv6, best first.
};

[[nodiscard]] std::string encode_contact(Contact const& contact);
/// @throws SystemError naming `rank` if the text is no contact.
[[nodiscard]] Contact decode_contact(std::string_view text, int rank);

/// The contacts of all ranks as one text: of rank 1 first, of rank 0 none.
[[nodiscard]] std::vector<std::byte> encode_contacts(std::vector<std::string> const& texts);
/// @returns (size) entries, the first of them empty. @throws SystemError if there are not contacts for `size` ranks.
[[nodiscard]] std::vector<Contact> decode_contacts(std::span<std::byte const> body, int size);

}  // namespace headway::comm
