// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "torch_headers.hpp"

namespace headway::c10d_backend {

/// Defines set_log_function() and flush_log() in `module`.
void define_log(pybind11::module_& module);

}  // namespace headway::c10d_backend
