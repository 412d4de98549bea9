// SPDX-License-Identifier: Apache-2.0
#pragma once

// The torch headers of this folder, as one precompiled header.

#include <ATen/ATen.h>
#include <torch/csrc/utils/pybind.h>
