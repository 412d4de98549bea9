// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "torch_headers.hpp"

#include <headway/comm/device_group.hpp>

namespace headway::c10d_backend {

/// comm::DeviceGroup with the calls of comm::Group, for one stream. One generic lambda can then start an operation on
/// either.
///
/// Example: `[&](auto& group) { return group.broadcast(block, root, type); }` works on both. Here the call adds the
/// stream and the time limit, which a Group does not take. It lives only while one operation is started. `match` is the
/// message tag that pairs a send with a receive.
class DeviceGroupAdaptor final {
 public:
  DeviceGroupAdaptor(comm::DeviceGroup& group, comm::DeviceCall const& call) : group_(group), call_(call) {}

  auto all_to_all_v(comm::AllToAllArgs const& args) { return group_.all_to_all_v(args, call_); }
  auto broadcast(std::span<std::byte> block, int root, comm::DataType type) {
    return group_.broadcast(block, root, type, call_);
  }
  auto gather(std::span<std::byte const> block, std::span<std::span<std::byte> const> receives, int root,
              comm::DataType type) {
    return group_.gather(block, receives, root, type, call_);
  }
  auto scatter(std::span<std::span<std::byte const> const> sends, std::span<std::byte> block, int root,
               comm::DataType type) {
    return group_.scatter(sends, block, root, type, call_);
  }
  auto all_gather(std::span<std::byte const> block, std::span<std::span<std::byte> const> receives,
                  comm::DataType type) {
    return group_.all_gather(block, receives, type, call_);
  }
  auto send(std::span<std::byte const> block, int peer, std::uint64_t match, comm::DataType type) {
    return group_.send(block, peer, match, type, call_);
  }
  auto receive(std::span<std::byte> block, int peer, std::uint64_t match, comm::DataType type) {
    return group_.receive(block, peer, match, type, call_);
  }
  comm::DeviceOperationPtr receive_any(std::span<std::byte> /*block*/, std::uint64_t /*match*/,
                                       comm::DataType /*type*/) {
    TORCH_CHECK_NOT_IMPLEMENTED(false,
                                "headway receives CUDA tensors from a rank that is named, not from any: a stream "
                                "cannot wait for whichever comes first");
  }

 private:
  comm::DeviceGroup& group_;
  comm::DeviceCall call_;
};

}  // namespace headway::c10d_backend
