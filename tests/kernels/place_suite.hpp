#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace headway::kernels {

/// Factory of a place, by name.
template <class Place>
struct NamedPlace {
  std::string name;
  std::unique_ptr<Place> (*make)();  ///< Returns null if this host has no such place.
};

/// Test suite that runs once at each place of its program.
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
