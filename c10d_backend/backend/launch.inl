// SPDX-License-Identifier: Apache-2.0

// Templates of headway_backend.hpp. `start` is a template parameter, so that starting an operation needs no allocation
// for it.

#include "backend/device_group_adaptor.hpp"
#include "work/device_work.hpp"
#include "runtime/errors.hpp"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace headway::c10d_backend {

template <typename Start>
c10::intrusive_ptr<c10d::Work> HeadwayBackend::launch(OpInfo const& op, WorkTensors tensors,
                                                      std::vector<at::Tensor> const& inputs, Start&& start) {
  auto const device = tensors.device();
  if (!device || !device->is_cuda()) return launch_on_host(op, std::move(tensors), inputs, start);
  auto handle = this->handle();
  handle->release_completed();
  auto const stream = c10::impl::VirtualGuardImpl(device->type()).getStream(*device);
  auto operations = translate_errors(op.name, [&] {
    DeviceGroupAdaptor adaptor(handle->device_group(device->index()),
                      {.stream = stream.native_handle(),
                       .timeout = op.timeout});
    return start(adaptor);
  });
  return record_if_coalescing(c10::make_intrusive<DeviceWork>(std::move(handle), op, getRank(), std::move(tensors),
                                                  std::move(operations), inputs, stream));
}

template <typename Start>
c10::intrusive_ptr<c10d::Work> HeadwayBackend::launch_on_host(OpInfo const& op, WorkTensors tensors,
                                                              std::vector<at::Tensor> const& inputs, Start&& start) {
  auto handle = this->handle();
  auto operations = translate_errors(op.name, [&] { return start(handle->group()); });
  return record_if_coalescing(c10::make_intrusive<HeadwayWork>(std::move(handle), op, getRank(), std::move(tensors),
                                                   std::move(operations), inputs));
}

}  // namespace headway::c10d_backend
