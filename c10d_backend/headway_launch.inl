// Templates of headway_backend.hpp. `start` is a template parameter, so that starting an operation needs no allocation
// for it.

#include "device_mover.hpp"
#include "device_work.hpp"
#include "errors.hpp"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace headway::c10d_backend {

template <typename Start>
c10::intrusive_ptr<c10d::Work> HeadwayBackend::launch(WorkTitle const& title, WorkTensors tensors,
                                                      std::vector<at::Tensor> const& inputs, Start&& start) {
  auto const device = tensors.device();
  if (!device || !device->is_cuda()) return launch_on_host(title, std::move(tensors), inputs, start);
  auto handle = this->handle();
  handle->let_go_of_done();
  auto const stream = c10::impl::VirtualGuardImpl(device->type()).getStream(*device);
  auto operations = translate_errors(title.name, [&] {
    DeviceMover mover(handle->device_group(device->index()),
                      {.stream = stream.native_handle(),
                       .timeout = title.timeout});
    return start(mover);
  });
  return hand_out(c10::make_intrusive<DeviceWork>(std::move(handle), title, getRank(), std::move(tensors),
                                                  std::move(operations), inputs, stream));
}

template <typename Start>
c10::intrusive_ptr<c10d::Work> HeadwayBackend::launch_on_host(WorkTitle const& title, WorkTensors tensors,
                                                              std::vector<at::Tensor> const& inputs, Start&& start) {
  auto handle = this->handle();
  auto operations = translate_errors(title.name, [&] { return start(handle->group()); });
  return hand_out(c10::make_intrusive<HeadwayWork>(std::move(handle), title, getRank(), std::move(tensors),
                                                   std::move(operations), inputs));
}

}  // namespace headway::c10d_backend
