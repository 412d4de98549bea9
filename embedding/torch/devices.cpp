#include "devices.hpp"

#include "headway/comm/status.hpp"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace headway::embedding {

at::Device resolve(std::optional<at::Device> device) {
  auto const found = device.value_or(at::Device(at::kCPU));
  comm::expects(found.is_cpu() || found.is_cuda(), "tables are on the CPU or a CUDA device, not on " + found.str());
  if (found.is_cpu()) return at::Device(at::kCPU);
  return found.has_index() ? found : c10::impl::VirtualGuardImpl(found.type()).getDevice();
}

CudaPlace place_of(at::Device device) {
  return {.device = device.index(), .current_stream = [device] {
            auto const stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
            return static_cast<CudaStream>(stream.native_handle());
          }};
}

std::string name_of(at::Device device) { return device.is_cpu() ? "the CPU" : device.str(); }

}  // namespace headway::embedding
