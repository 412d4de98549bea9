// SPDX-License-Identifier: Apache-2.0

#include <torch/version.h>

/// The version of torch that this library was built for, so that a process can compare it with its own.
extern "C" char const* headway_torch_version() { return TORCH_VERSION; }
