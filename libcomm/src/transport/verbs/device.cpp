// SPDX-License-Identifier: Apache-2.0

// RDMA devices, ports and GIDs of this host, and the choice of one of them.
//
// Example: a host has mlx5_0 port 1 with GID 0 (fe80::1, link-local) and GID 3 (10.0.0.7), both RoCE v2. Link-local
// addresses are sorted last. If this rank's first connection to another host used 10.0.0.7, GID 3 is chosen.

#include "transport/verbs/device.hpp"

#include "headway/comm/status.hpp"
#include "system/sockets.hpp"

#include <arpa/inet.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

namespace headway::comm::verbs {

namespace {

/// RAII list of the RDMA devices.
class DeviceList {
 public:
  DeviceList() : devices_(library().get_device_list(&count_)) {}
  ~DeviceList() {
    if (devices_ != nullptr) library().free_device_list(devices_);
  }
  DeviceList(DeviceList const&) = delete;
  DeviceList& operator=(DeviceList const&) = delete;
  [[nodiscard]] int size() const { return devices_ == nullptr ? 0 : count_; }
  [[nodiscard]] ibv_device* operator[](int i) const { return devices_[i]; }

 private:
  int count_ = 0;
  ibv_device** devices_;
};

bool is_ipv4(ibv_gid const& gid) { return IN6_IS_ADDR_V4MAPPED(reinterpret_cast<in6_addr const*>(gid.raw)); }
bool is_link_local(ibv_gid const& gid) { return IN6_IS_ADDR_LINKLOCAL(reinterpret_cast<in6_addr const*>(gid.raw)); }

/// A GID as an IP address. An IPv4 address takes the last 4 of its 16 bytes.
std::string gid_text(ibv_gid const& gid) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  bool const v4 = is_ipv4(gid);
  inet_ntop(v4 ? AF_INET : AF_INET6, gid.raw + (v4 ? 12 : 0), text.data(), text.size());
  return text.data();
}

/// Adds each GID of a port that is up and can be used with RDMA over its kind of link.
void add_port(std::vector<Address>& found, ibv_context* context, std::string const& name, std::uint8_t port) {
  ibv_port_attr attributes{};
  if (library().query_port(context, port, reinterpret_cast<_compat_ibv_port_attr*>(&attributes)) != 0) return;
  if (attributes.state != IBV_PORT_ACTIVE) return;
  bool const is_ethernet = attributes.link_layer == IBV_LINK_LAYER_ETHERNET;
  for (int index = 0; index < attributes.gid_tbl_len; ++index) {
    ibv_gid_entry entry{};
    auto const gid_index = static_cast<std::uint32_t>(index);
    if (library().query_gid_ex(context, port, gid_index, &entry, 0, sizeof entry) != 0) continue;
    // RoCE v1 frames are not routed, and a port lists the same address for both versions.
    if (entry.gid_type != (is_ethernet ? IBV_GID_TYPE_ROCE_V2 : IBV_GID_TYPE_IB)) continue;
    found.push_back({.device = name,
                     .port = port,
                     .gid_index = gid_index,
                     .gid = entry.gid,
                     .lid = attributes.lid,
                     .mtu = attributes.active_mtu,
                     .is_ethernet = is_ethernet,
                     .max_message_bytes = attributes.max_msg_sz});
  }
}

/// Own IP address in the first connection to another host, or else in the first connection.
std::string own_ip(std::vector<ControlSocket> const& control_sockets) {
  auto const is_there = [](ControlSocket const& each) { return each.fd.valid(); };
  auto found =
      std::ranges::find_if(control_sockets, [&](auto const& each) { return is_there(each) && !each.same_host; });
  if (found == control_sockets.end()) found = std::ranges::find_if(control_sockets, is_there);
  return found == control_sockets.end() ? "" : own_address(found->fd.get()).ip();
}

/// `wanted` is "DEVICE:PORT:GID_INDEX", or a prefix of it.
bool matches(Address const& address, std::string const& wanted) {
  std::string const port = address.device + ":" + std::to_string(address.port);
  return wanted == address.device || wanted == port || wanted == port + ":" + std::to_string(address.gid_index);
}

}  // namespace

std::string Address::text() const {
  return device + " port " + std::to_string(port) + ", GID " + std::to_string(gid_index) + " (" + gid_text(gid) + ")";
}

std::vector<Address> find_addresses() {
  std::vector<Address> found;
  try {
    DeviceList const devices;
    for (int i = 0; i < devices.size(); ++i) {
      Context const context(library().open_device(devices[i]));
      ibv_device_attr attributes{};
      if (!context || library().query_device(context.get(), &attributes) != 0) continue;
      for (int port = 1; port <= attributes.phys_port_cnt; ++port) {
        add_port(found, context.get(), library().get_device_name(devices[i]), static_cast<std::uint8_t>(port));
      }
    }
  } catch (SystemError const&) {
    return {};
  }
  std::ranges::stable_sort(found, {}, [](Address const& each) { return each.is_ethernet && is_link_local(each.gid); });
  return found;
}

// Two ports reach each other if they have the same kind: InfiniBand in one subnet, or RoCE with addresses of one
// family, which routers can forward. Link-local addresses reach the same Ethernet only.
RdmaReach Address::reach() const {
  using Kind = RdmaReach::Kind;
  if (!is_ethernet) return {.kind = Kind::kInfiniBand, .subnet_prefix = gid.global.subnet_prefix};
  return {.kind = is_ipv4(gid) ? Kind::kRoceIpv4 : is_link_local(gid) ? Kind::kRoceLinkLocal : Kind::kRoceIpv6};
}

bool Address::is_of(std::vector<InterfaceAddress> const& of_interface) const {
  return std::ranges::any_of(of_interface, [&](InterfaceAddress const& each) {
    if (is_ethernet) return gid_text(gid) == each.address.ip();
    std::error_code ignored;
    return std::filesystem::exists("/sys/class/infiniband/" + device + "/device/net/" + each.interface, ignored);
  });
}

Address choose_address(std::string const& wanted, std::vector<ControlSocket> const& control_sockets,
                       std::vector<Address> addresses) {
  (void)library();  // Throws with the reason if the library is missing.
  std::string present;
  for (auto const& each : addresses) present += (present.empty() ? "" : "; ") + each.text();
  if (!wanted.empty()) std::erase_if(addresses, [&](auto const& each) { return !matches(each, wanted); });
  if (addresses.empty()) {
    throw SystemError("transport verbs: no active port" + (wanted.empty() ? "" : " matches " + wanted) +
                      (present.empty() ? "; this host has no RDMA device that is up" : "; there are " + present));
  }
  std::string const ip = own_ip(control_sockets);
  auto const holder = std::ranges::find_if(addresses, [&](auto const& each) { return gid_text(each.gid) == ip; });
  return holder == addresses.end() ? addresses.front() : *holder;
}

Context open_device(std::string const& name) {
  DeviceList const devices;
  for (int i = 0; i < devices.size(); ++i) {
    if (name != library().get_device_name(devices[i])) continue;
    Context context(library().open_device(devices[i]));
    if (!context) throw SystemError("ibv_open_device", errno, name);
    return context;
  }
  throw SystemError("ibv_open_device", ENODEV, name);
}

}  // namespace headway::comm::verbs
