#pragma once

#include "headway/kernels/gated_norm.hpp"
#include "headway/kernels/silu_split.hpp"
#include "place_memory.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace headway::kernels {

/// Where kernels of layers compute. Calls return when all is done.
class LayerPlace : public PlaceMemory {
 public:
  virtual void gated_norm(GatedNorm const& args, void* out, void* statistics) = 0;
  virtual void gated_norm_backward(GatedNormBackward const& args) = 0;
  virtual void silu_split(SiluSplit const& args) = 0;
  virtual void silu_split_backward(SiluSplitBackward const& args) = 0;
};

struct NamedLayerPlace {
  std::string name;
  std::unique_ptr<LayerPlace> (*make)();  ///< Null where this host has no such place.
};

/// A suite runs at each place that its program has.
std::vector<NamedLayerPlace> layer_places();

class LayerKernels : public testing::TestWithParam<NamedLayerPlace> {
 protected:
  void SetUp() override {
    if (!place_) GTEST_SKIP() << "this host has none";
  }

  std::unique_ptr<LayerPlace> place_ = GetParam().make();
};

inline std::string name_of_layer_place(testing::TestParamInfo<NamedLayerPlace> const& info) { return info.param.name; }

}  // namespace headway::kernels
