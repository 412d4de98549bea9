#pragma once

#include "engines/nvlink/context.hpp"
#include "file_descriptor.hpp"

#include <cstddef>
#include <memory>
#include <utility>

namespace headway::comm::nvlink {

/// Memory of a device that processes share: made by one, mapped by others of the same host. The memory stays until the
/// last of them has let go of it, or has ended.
class DeviceSegment {
 public:
  DeviceSegment() = default;
  /// Allocates at least `num_bytes` on the context's device, and writes a descriptor for peers to `shared`.
  static DeviceSegment create(std::shared_ptr<Context const> context, std::size_t num_bytes, FileDescriptor& shared);
  /// Maps what a peer created with `num_bytes`, for copies by the context's device.
  static DeviceSegment map(std::shared_ptr<Context const> context, FileDescriptor shared, std::size_t num_bytes);
  DeviceSegment(DeviceSegment&& other) noexcept { *this = std::move(other); }
  DeviceSegment& operator=(DeviceSegment&& other) noexcept;
  ~DeviceSegment();

  [[nodiscard]] CUdeviceptr address() const { return address_; }
  [[nodiscard]] std::size_t num_bytes() const { return mapped_bytes_; }
  /// Waits until the device is done with all that was enqueued so far, as unmapping memory may not.
  void wait_for_device() const noexcept;

 private:
  void map_handle(CUmemGenericAllocationHandle handle, std::size_t num_bytes);

  std::shared_ptr<Context const> context_;
  CUdeviceptr address_ = 0;
  std::size_t mapped_bytes_ = 0;
};

/// Device memory of this process, with a descriptor of it for peers.
struct SharedSegment {
  SharedSegment(std::shared_ptr<Context const> context, std::size_t num_bytes)
      : memory(DeviceSegment::create(std::move(context), num_bytes, descriptor)) {}

  FileDescriptor descriptor;
  DeviceSegment memory;
};

/// Memory of the host that processes share and that their devices read and write: words that streams write and wait
/// for, which a CPU may read and write as well.
class HostSegment {
 public:
  HostSegment() = default;
  /// Zeroed. Writes a descriptor for peers to `shared`.
  static HostSegment create(std::shared_ptr<Context const> context, std::size_t num_bytes, FileDescriptor& shared);
  static HostSegment map(std::shared_ptr<Context const> context, FileDescriptor const& shared, std::size_t num_bytes);
  HostSegment(HostSegment&& other) noexcept { *this = std::move(other); }
  HostSegment& operator=(HostSegment&& other) noexcept;
  ~HostSegment();

  [[nodiscard]] std::byte* data() const { return data_; }
  /// Where the device sees data().
  [[nodiscard]] CUdeviceptr address() const { return address_; }

 private:
  std::shared_ptr<Context const> context_;
  std::byte* data_ = nullptr;
  CUdeviceptr address_ = 0;
  std::size_t num_bytes_ = 0;
};

}  // namespace headway::comm::nvlink
