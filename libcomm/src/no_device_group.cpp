// In place of device_group_impl.cpp in a build without cuda.h.

#include "headway/comm/device_group.hpp"

namespace headway::comm {

std::unique_ptr<DeviceGroup> DeviceGroup::make(Group& /*group*/, DeviceOptions const& /*options*/) {
  throw UsageError("this build of Headway has no CUDA: cuda.h was not found when it was made");
}

}  // namespace headway::comm
