// SPDX-License-Identifier: Apache-2.0

// Stub for builds without cuda.h, in place of device_group_impl.cpp. The public functions exist in every build, so
// that programs link against either; here all but the count of generations throw UsageError.

#include "headway/comm/device_group.hpp"
#include "headway/comm/device_memory.hpp"

namespace headway::comm {

namespace {

[[noreturn]] void refuse() {
  throw UsageError("this build of Headway has no CUDA: cuda.h was not found when it was made");
}

}  // namespace

std::unique_ptr<DeviceGroup> DeviceGroup::make(Group& /*group*/, DeviceOptions const& /*options*/) { refuse(); }

void* allocate_device_memory(int /*ordinal*/, std::size_t /*num_bytes*/) { refuse(); }

void free_device_memory(void* /*memory*/) { refuse(); }

std::uint64_t device_memory_generation() { return 0; }

}  // namespace headway::comm
