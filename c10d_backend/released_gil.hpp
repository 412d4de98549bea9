#pragma once

#include "torch_headers.hpp"

#include <optional>

namespace headway::c10d_backend {

/// Lets other Python threads run while this exists, if the calling thread holds the interpreter lock at all.
class ReleasedGil final {
 public:
  ReleasedGil() {
    if (Py_IsInitialized() && PyGILState_Check()) released_.emplace();
  }

 private:
  std::optional<pybind11::gil_scoped_release> released_;
};

}  // namespace headway::c10d_backend
