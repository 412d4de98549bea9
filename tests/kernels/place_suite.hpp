#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace headway::kernels {

template <class Place>
struct NamedPlace {
  std::string name;
  std::unique_ptr<Place> (*make)();  ///< Null where this host has no such place.
};

/// A suite runs at each place that its program has.
template <class Place>
class PlaceSuite : public testing::TestWithParam<NamedPlace<Place>> {
 protected:
  void SetUp() override {
    if (!place_) GTEST_SKIP() << "this host has none";
  }

  std::unique_ptr<Place> place_ = this->GetParam().make();
};

template <class Place>
std::string name_of_place(testing::TestParamInfo<NamedPlace<Place>> const& info) {
  return info.param.name;
}

}  // namespace headway::kernels
