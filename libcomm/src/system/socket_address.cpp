// SPDX-License-Identifier: Apache-2.0

// Socket addresses as values, and the addresses of this host.
//
// The text form is that of URLs: "10.0.0.1:80" and "[fd00::1]:80", since an IPv6 address has colons of its own. An
// IPv4 peer of an IPv6 socket has the address ::ffff:10.0.0.1; ip() gives the plain form, so that both ends name it
// alike.

#include "system/socket_address.hpp"

#include "headway/comm/status.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <memory>

namespace headway::comm {
namespace {

template <typename Family>
Family as(sockaddr_storage const& storage) {
  Family address;
  std::memcpy(&address, &storage, sizeof(address));
  return address;
}

bool is_link_local(SocketAddress const& address) {
  if (address.family() != AF_INET6) return false;
  sockaddr_in6 v6;
  std::memcpy(&v6, address.raw(), sizeof(v6));
  return IN6_IS_ADDR_LINKLOCAL(&v6.sin6_addr);
}

}  // namespace

SocketAddress::SocketAddress(sockaddr const* address, socklen_t length) : length_(length) {
  expects(length <= sizeof(storage_), "a socket address is too long");
  std::memcpy(&storage_, address, length);
}

// The name is abstract (Linux): no file remains if the process is killed. Any process in the network namespace
// may connect, whoever its user is, so peers must prove themselves in another way.
SocketAddress SocketAddress::local(std::string_view name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  expects(name.size() < sizeof(address.sun_path), "a local socket's name is too long");
  std::memcpy(address.sun_path + 1, name.data(), name.size());  // The leading zero byte makes it abstract.
  auto const length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return {reinterpret_cast<sockaddr const*>(&address), length};
}

std::optional<SocketAddress> SocketAddress::numeric(std::string_view host, std::uint16_t port) {
  std::string const text(host);
  sockaddr_in v4{};
  if (::inet_pton(AF_INET, text.c_str(), &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    return SocketAddress(reinterpret_cast<sockaddr const*>(&v4), sizeof(v4));
  }
  sockaddr_in6 v6{};
  if (::inet_pton(AF_INET6, text.c_str(), &v6.sin6_addr) == 1) {
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
    return SocketAddress(reinterpret_cast<sockaddr const*>(&v6), sizeof(v6));
  }
  return std::nullopt;
}

std::optional<SocketAddress> SocketAddress::parse(std::string_view text) {
  // The last colon: an IPv6 address contains others.
  std::size_t const colon = text.rfind(':');
  if (colon == std::string_view::npos) return std::nullopt;
  std::string_view host = text.substr(0, colon);
  std::string_view const port_text = text.substr(colon + 1);
  std::uint16_t port = 0;
  auto const [end, error] = std::from_chars(port_text.data(), port_text.data() + port_text.size(), port);
  if (error != std::errc() || end != port_text.data() + port_text.size()) return std::nullopt;
  bool const has_brackets = host.size() >= 2 && host.front() == '[' && host.back() == ']';
  if (has_brackets) host = host.substr(1, host.size() - 2);
  // Without brackets nobody can tell whether the last number of an IPv6 address is a port.
  if (!has_brackets && host.find(':') != std::string_view::npos) return std::nullopt;
  return numeric(host, port);
}

bool SocketAddress::is_loopback() const {
  if (family() == AF_INET) return (ntohl(as<sockaddr_in>(storage_).sin_addr.s_addr) >> 24) == 127;
  if (family() != AF_INET6) return false;
  auto const v6 = as<sockaddr_in6>(storage_);
  return IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr);
}

std::uint16_t SocketAddress::port() const {
  if (family() == AF_INET) return ntohs(as<sockaddr_in>(storage_).sin_port);
  if (family() == AF_INET6) return ntohs(as<sockaddr_in6>(storage_).sin6_port);
  return 0;
}

SocketAddress SocketAddress::with_port(std::uint16_t port) const {
  SocketAddress copy = *this;
  // The port has the same offset in both families.
  static_assert(offsetof(sockaddr_in, sin_port) == offsetof(sockaddr_in6, sin6_port));
  std::uint16_t const network_port = htons(port);
  if (!is_local()) {
    std::memcpy(reinterpret_cast<char*>(&copy.storage_) + offsetof(sockaddr_in, sin_port), &network_port,
                sizeof(network_port));
  }
  return copy;
}

std::string SocketAddress::host() const {
  char text[INET6_ADDRSTRLEN] = "";
  if (family() == AF_INET) {
    auto const v4 = as<sockaddr_in>(storage_);
    ::inet_ntop(AF_INET, &v4.sin_addr, text, sizeof(text));
  } else if (family() == AF_INET6) {
    auto const v6 = as<sockaddr_in6>(storage_);
    ::inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof(text));
  }
  return text;
}

std::string SocketAddress::ip() const {
  std::string text = host();
  if (family() != AF_INET6) return text;
  auto const v6 = as<sockaddr_in6>(storage_);
  return IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr) ? text.substr(text.rfind(':') + 1) : text;
}

std::string SocketAddress::to_string() const {
  if (family() == AF_INET) return host() + ":" + std::to_string(port());
  if (family() == AF_INET6) return "[" + host() + "]:" + std::to_string(port());
  return is_local() ? "a local socket" : "no address";
}

std::vector<InterfaceAddress> interface_addresses() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) throw SystemError("getifaddrs", errno, "listing this host's addresses");
  // IPv6 link-local addresses are left out: they are valid only with the number of an interface, which means nothing on
  // another host. Loopback comes last: it leads a peer on another host to itself.
  std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> const owner(first, &::freeifaddrs);
  std::vector<InterfaceAddress> found;
  for (ifaddrs const* entry = first; entry; entry = entry->ifa_next) {
    if (!entry->ifa_addr || !(entry->ifa_flags & IFF_UP)) continue;
    int const family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    SocketAddress const address(entry->ifa_addr, family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    if (!is_link_local(address)) found.push_back({entry->ifa_name, address});
  }
  std::stable_partition(found.begin(), found.end(), [](auto const& each) { return !each.address.is_loopback(); });
  return found;
}

std::vector<SocketAddress> host_addresses() {
  std::vector<SocketAddress> addresses;
  for (auto const& each : interface_addresses()) addresses.push_back(each.address);
  return addresses;
}

}  // namespace headway::comm
