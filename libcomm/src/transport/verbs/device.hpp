// SPDX-License-Identifier: Apache-2.0

// Owned objects of libibverbs, and addresses of ports. Each object has a deleter that calls the matching destroy
// function of the library that was loaded at run time (library.hpp).

#pragma once

#include "system/socket_address.hpp"
#include "transport/rdma_reach.hpp"
#include "transport/verbs/library.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace headway::comm::verbs {

/// Deleter that destroys a libibverbs object with its matching function.
template <auto Destroy>
struct Release {
  template <typename Object>
  void operator()(Object* object) const noexcept {
    (library().*Destroy)(object);
  }
};
using Context = std::unique_ptr<ibv_context, Release<&Library::close_device>>;
using ProtectionDomain = std::unique_ptr<ibv_pd, Release<&Library::dealloc_pd>>;
using MemoryRegion = std::unique_ptr<ibv_mr, Release<&Library::dereg_mr>>;
using CompletionChannel = std::unique_ptr<ibv_comp_channel, Release<&Library::destroy_comp_channel>>;
using CompletionQueue = std::unique_ptr<ibv_cq, Release<&Library::destroy_cq>>;
using SharedReceiveQueue = std::unique_ptr<ibv_srq, Release<&Library::destroy_srq>>;
using QueuePair = std::unique_ptr<ibv_qp, Release<&Library::destroy_qp>>;

/// One GID of one port. An endpoint creates its queue pairs there.
struct Address {
  std::string device;  ///< Device name in libibverbs.
  std::uint8_t port = 1;
  std::uint32_t gid_index = 0;
  ibv_gid gid{};
  std::uint16_t lid = 0;       ///< LID on InfiniBand; 0 on Ethernet.
  ibv_mtu mtu = IBV_MTU_1024;  ///< Active MTU of the port.
  bool is_ethernet = true;
  std::size_t max_message_bytes = 0;

  /// "rxe0 port 1, GID 2 (fd00:77::1)"
  [[nodiscard]] std::string text() const;
  /// Address family and subnet that peers compare with theirs.
  [[nodiscard]] RdmaReach reach() const;
  /// True if this port belongs to the network interface with the addresses `of_interface`: on Ethernet the GID is one
  /// of them; on InfiniBand the interface is IP over this device.
  [[nodiscard]] bool is_of(std::vector<InterfaceAddress> const& of_interface) const;
};

/// All addresses of active ports on this host, best first: RoCE v2 or InfiniBand, routable before link-local. Empty if
/// there is no device or no libibverbs.
std::vector<Address> find_addresses();

/// Chooses one of `addresses`. `wanted` is "", DEVICE, DEVICE:PORT or DEVICE:PORT:GID_INDEX. Among several matches it
/// prefers this host's address in the first connection to another host (to any rank if there is none).
/// @throws SystemError that names what was wanted and what exists.
Address choose_address(std::string const& wanted, std::vector<ControlSocket> const& control_sockets,
                       std::vector<Address> addresses = find_addresses());

/// Opens the device `name`. @throws SystemError.
Context open_device(std::string const& name);

}  // namespace headway::comm::verbs
