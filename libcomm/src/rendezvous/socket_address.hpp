#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace headway::comm {

/// An address of any family that a stream socket can listen on.
class SocketAddress {
 public:
  SocketAddress() = default;
  SocketAddress(sockaddr const* address, socklen_t length);
  /// A name in Linux's abstract namespace: seen by all processes in one network namespace, gone with its socket.
  static SocketAddress local(std::string_view name);
  /// A numeric IPv4 or IPv6 address.
  static std::optional<SocketAddress> numeric(std::string_view host, std::uint16_t port);
  /// Parses what to_string() gave for IPv4 and IPv6: "10.0.0.1:80", "[::1]:80".
  static std::optional<SocketAddress> parse(std::string_view text);

  [[nodiscard]] sockaddr const* raw() const { return reinterpret_cast<sockaddr const*>(&storage_); }
  [[nodiscard]] socklen_t length() const { return length_; }
  [[nodiscard]] int family() const { return storage_.ss_family; }
  [[nodiscard]] bool is_local() const { return family() == AF_UNIX; }
  [[nodiscard]] bool is_loopback() const;
  [[nodiscard]] std::uint16_t port() const;
  [[nodiscard]] SocketAddress with_port(std::uint16_t port) const;
  /// Numeric, without the port; an IPv4 address also where it came as an IPv6 one. "": of another family.
  [[nodiscard]] std::string ip() const;
  [[nodiscard]] std::string to_string() const;

 private:
  [[nodiscard]] std::string host() const;

  sockaddr_storage storage_{};
  socklen_t length_ = 0;
};

/// An address of this host, with port 0, and the name of its interface.
struct InterfaceAddress {
  std::string interface;
  SocketAddress address;
};
/// Addresses of all interfaces that are up, without link-local ones: addresses that others can reach before loopback.
[[nodiscard]] std::vector<InterfaceAddress> interface_addresses();
/// Addresses of this host that another can reach (not link-local), then its loopback addresses; all with port 0.
[[nodiscard]] std::vector<SocketAddress> host_addresses();

}  // namespace headway::comm
