// SPDX-License-Identifier: Apache-2.0
#include "cpu_features.hpp"

#include "temporary_directory.hpp"

#include <gtest/gtest.h>

#include <fstream>

namespace headway::serving {
namespace {

TEST(CpuFeatures, what_the_machine_lacks_is_named) {
  TemporaryDirectory const directory;
  auto const path = directory.path() / "cpuinfo";
  std::ofstream(path) << "processor : 0\nflags\t\t: fpu sse2 avx2\n\nprocessor : 1\nflags : fpu\n";
  std::vector<std::string> const wanted{"sse2", "avx512f", "avx2", "a_machine"};
  EXPECT_EQ(missing_cpu_features(wanted, path), (std::vector<std::string>{"avx512f", "a_machine"}));
  EXPECT_EQ(missing_cpu_features(wanted, "/nowhere"), wanted);
}

}  // namespace
}  // namespace headway::serving
