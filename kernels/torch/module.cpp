// SPDX-License-Identifier: Apache-2.0

// Extension module headway._kernels. Importing it registers the operators; python/headway/_kernels.pyi describes the
// rest.

#include "torch_headers.hpp"

#include <torch/version.h>

PYBIND11_MODULE(_kernels, module) {
  module.doc() = "Operators of models: torch.ops.headway";
  module.attr("torch_version") = TORCH_VERSION;
}
