// SPDX-License-Identifier: Apache-2.0

// Devices of tables, from those of torch. It uses torch's virtual guards, not c10/cuda: so this extension loads in a
// torch without CUDA.

#include "devices.hpp"

#include "headway/base/status.hpp"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace headway::embedding {

at::Device resolve(std::optional<at::Device> device) {
  auto const found = device.value_or(at::Device(at::kCPU));
  base::expects(found.is_cpu() || found.is_cuda(), "tables are on the CPU or a CUDA device, not on " + found.str());
  if (found.is_cpu()) return at::Device(at::kCPU);
  // "cuda" without an index means torch's current device, as in torch.empty(device="cuda").
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
