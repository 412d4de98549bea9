#pragma once

#include "headway/kernels/gated_norm.hpp"
#include "headway/kernels/silu_split.hpp"
#include "place_memory.hpp"
#include "place_suite.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace headway::kernels {

/// Interface of a place where layer kernels run. Calls return when the work is complete.
class LayerPlace : public PlaceMemory {
 public:
  virtual void gated_norm(GatedNorm const& args, void* out, void* statistics) = 0;
  virtual void gated_norm_backward(GatedNormBackward const& args) = 0;
  virtual void silu_split(SiluSplit const& args) = 0;
  virtual void silu_split_backward(SiluSplitBackward const& args) = 0;
};

/// Places that this test program is linked with.
std::vector<NamedPlace<LayerPlace>> layer_places();

using LayerKernels = PlaceSuite<LayerPlace>;

}  // namespace headway::kernels
