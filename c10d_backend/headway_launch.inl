// Included by headway_backend.hpp: a template, so that starting an operation costs no allocation for its starter.

#include "errors.hpp"

namespace headway::c10d_backend {

template <typename Start>
c10::intrusive_ptr<c10d::Work> HeadwayBackend::launch(WorkTitle const& title, WorkTensors tensors,
                                                      std::vector<at::Tensor> const& inputs, Start&& start) {
  auto handle = this->handle();
  auto operations = translate_errors(title.name, [&] { return start(handle->group()); });
  return hand_out(c10::make_intrusive<HeadwayWork>(std::move(handle), title, getRank(), std::move(tensors),
                                                   std::move(operations), inputs));
}

}  // namespace headway::c10d_backend
