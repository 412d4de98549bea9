// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/peer_copy/context.hpp"
#include "headway/base/file_descriptor.hpp"

#include <cstddef>
#include <memory>
#include <utility>

namespace headway::comm::peer_copy {

/// Device memory that processes of one host share (VMM handle): created by one, mapped by others. It is freed when the
/// last of them has unmapped it and closed its descriptors, or ended.
class DeviceSegment {
 public:
  DeviceSegment() = default;
  /// Allocates at least `num_bytes` on the context's device. `shared` receives a descriptor for peers.
  static DeviceSegment create(std::shared_ptr<Context const> context, std::size_t num_bytes,
                              base::FileDescriptor& shared);
  /// Maps memory that a peer created with `num_bytes`, for access by the context's device.
  static DeviceSegment map(std::shared_ptr<Context const> context, base::FileDescriptor shared, std::size_t num_bytes);
  DeviceSegment(DeviceSegment&& other) noexcept { *this = std::move(other); }
  DeviceSegment& operator=(DeviceSegment&& other) noexcept;
  ~DeviceSegment();

  [[nodiscard]] CUdeviceptr address() const { return address_; }
  [[nodiscard]] std::size_t num_bytes() const { return mapped_bytes_; }
  /// Waits until the device has finished everything enqueued so far. Unmapping does not wait for that by itself.
  void wait_for_device() const noexcept;

 private:
  void map_handle(CUmemGenericAllocationHandle handle, std::size_t num_bytes);

  std::shared_ptr<Context const> context_;
  CUdeviceptr address_ = 0;
  std::size_t mapped_bytes_ = 0;
};

/// Device memory of this process, with a descriptor for peers.
struct SharedSegment {
  SharedSegment(std::shared_ptr<Context const> context, std::size_t num_bytes)
      : memory(DeviceSegment::create(std::move(context), num_bytes, descriptor)) {}

  base::FileDescriptor descriptor;
  DeviceSegment memory;
};

/// Pinned host memory that processes share. Their devices and CPUs read and write it; streams write words there and
/// wait for them.
class HostSegment {
 public:
  HostSegment() = default;
  /// Creates zeroed memory. `shared` receives a descriptor for peers.
  static HostSegment create(std::shared_ptr<Context const> context, std::size_t num_bytes,
                            base::FileDescriptor& shared);
  static HostSegment map(std::shared_ptr<Context const> context, base::FileDescriptor const& shared,
                         std::size_t num_bytes);
  HostSegment(HostSegment&& other) noexcept { *this = std::move(other); }
  HostSegment& operator=(HostSegment&& other) noexcept;
  ~HostSegment();

  [[nodiscard]] std::byte* data() const { return data_; }
  /// Device address of data().
  [[nodiscard]] CUdeviceptr address() const { return address_; }

 private:
  std::shared_ptr<Context const> context_;
  std::byte* data_ = nullptr;
  CUdeviceptr address_ = 0;
  std::size_t num_bytes_ = 0;
};

}  // namespace headway::comm::peer_copy
