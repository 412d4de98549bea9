// SPDX-License-Identifier: Apache-2.0
#pragma once

// Precompiled header of the Python extension.

#include "../torch_headers.hpp"

#include <torch/csrc/utils/pybind.h>
