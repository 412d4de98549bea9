#pragma once

#include "torch_headers.hpp"

#include <optional>

namespace headway::c10d_backend {

/// Releases the interpreter lock for its lifetime, if the calling thread holds it.
class ReleasedGil final {
 public:
  ReleasedGil() {
    if (Py_IsInitialized() && PyGILState_Check()) released_.emplace();
  }

 private:
  std::optional<pybind11::gil_scoped_release> released_;
};

}  // namespace headway::c10d_backend
