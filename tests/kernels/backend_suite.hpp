// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace headway::kernels {

/// Factory of a backend, by name. A backend runs kernels on the CPU, on an emulated device or on a CUDA device.
template <class Backend>
struct NamedBackend {
  std::string name;
  std::unique_ptr<Backend> (*make)();  ///< Returns null if this host has no such backend.
};

/// Test suite that runs once on each backend of its program.
template <class Backend>
class BackendSuite : public testing::TestWithParam<NamedBackend<Backend>> {
 protected:
  void SetUp() override {
    if (!backend_) GTEST_SKIP() << "this host has none";
  }

  std::unique_ptr<Backend> backend_ = this->GetParam().make();
};

template <class Backend>
std::string name_of_backend(testing::TestParamInfo<NamedBackend<Backend>> const& info) {
  return info.param.name;
}

}  // namespace headway::kernels
