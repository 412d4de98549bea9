// SPDX-License-Identifier: Apache-2.0

// Kernels of the HSTU layer behind one interface, so that each test runs on the CPU, on an emulated device and on a
// CUDA device.

#pragma once

#include "backend_memory.hpp"
#include "backend_suite.hpp"
#include "headway/kernels/gated_norm.hpp"
#include "headway/kernels/silu_split.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace headway::kernels {

/// Interface of a backend that runs layer kernels. The methods are the functions of the same names in the headers
/// above. Calls return when the work is complete.
class LayerBackend : public BackendMemory {
 public:
  virtual void gated_norm(GatedNorm const& args, void* out, void* statistics) = 0;
  virtual void gated_norm_backward(GatedNormBackward const& args) = 0;
  virtual void silu_split(SiluSplit const& args) = 0;
  virtual void silu_split_backward(SiluSplitBackward const& args) = 0;
};

/// Backends that this test program is linked with.
std::vector<NamedBackend<LayerBackend>> layer_backends();

using LayerKernels = BackendSuite<LayerBackend>;

}  // namespace headway::kernels
