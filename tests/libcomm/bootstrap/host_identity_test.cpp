// SPDX-License-Identifier: Apache-2.0

// Host identity: HEADWAY_HOST_ID splits one host into several, for tests of the paths between hosts. It must differ
// where the variable differs and be equal where it is equal; the rest comes from the kernel.

#include "bootstrap/host_identity.hpp"

#include <gtest/gtest.h>

#include <cstdlib>

namespace headway::comm {
namespace {

TEST(HostIdentity, ProcessesMayDeclareToBeOnDifferentHosts) {
  ::unsetenv("HEADWAY_HOST_ID");
  auto const own = host_identity();
  EXPECT_EQ(host_identity(), own);
  ::setenv("HEADWAY_HOST_ID", "a", 1);
  auto const declared = host_identity();
  EXPECT_NE(declared, own);
  EXPECT_EQ(host_identity(), declared);
  ::setenv("HEADWAY_HOST_ID", "b", 1);
  EXPECT_NE(host_identity(), declared);
  EXPECT_EQ(physical_host_identity(), own);
  ::unsetenv("HEADWAY_HOST_ID");
}

}  // namespace
}  // namespace headway::comm
