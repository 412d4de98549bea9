// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace headway::comm {

/// Address of any family on which a stream socket can listen: IPv4, IPv6 or local to the host (AF_UNIX). A value
/// without resources; no method looks up names, and none blocks.
class SocketAddress {
 public:
  SocketAddress() = default;
  SocketAddress(sockaddr const* address, socklen_t length);
  /// Name in Linux's abstract namespace: visible in one network namespace, removed with its socket.
  static SocketAddress local(std::string_view name);
  /// A numeric IPv4 or IPv6 address; nothing if `host` is none, such as a name. `port` is in host byte order here and
  /// below.
  static std::optional<SocketAddress> numeric(std::string_view host, std::uint16_t port);
  /// Parses the output of to_string() for IPv4 and IPv6: "10.0.0.1:80", "[::1]:80".
  static std::optional<SocketAddress> parse(std::string_view text);

  [[nodiscard]] sockaddr const* raw() const { return reinterpret_cast<sockaddr const*>(&storage_); }
  [[nodiscard]] socklen_t length() const { return length_; }
  [[nodiscard]] int family() const { return storage_.ss_family; }
  [[nodiscard]] bool is_local() const { return family() == AF_UNIX; }
  [[nodiscard]] bool is_loopback() const;
  /// 0 for families without ports.
  [[nodiscard]] std::uint16_t port() const;
  /// A copy with another port. A local address is returned unchanged.
  [[nodiscard]] SocketAddress with_port(std::uint16_t port) const;
  /// Numeric address without the port. An IPv4-mapped IPv6 address gives the IPv4 form. Empty for other families.
  [[nodiscard]] std::string ip() const;
  /// "10.0.0.1:80" or "[::1]:80". Does not tell the name of a local socket.
  [[nodiscard]] std::string to_string() const;

 private:
  /// Like ip(), but an IPv4-mapped address keeps its prefix "::ffff:".
  [[nodiscard]] std::string host() const;

  sockaddr_storage storage_{};
  socklen_t length_ = 0;
};

/// Address of this host, with port 0, and the name of its interface.
struct InterfaceAddress {
  std::string interface;
  SocketAddress address;
};
/// Addresses of all interfaces that are up, except link-local ones. Loopback comes last.
[[nodiscard]] std::vector<InterfaceAddress> interface_addresses();
/// Addresses of this host, not link-local, loopback last, all with port 0.
[[nodiscard]] std::vector<SocketAddress> host_addresses();

}  // namespace headway::comm
