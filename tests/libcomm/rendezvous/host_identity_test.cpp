#include "rendezvous/host_identity.hpp"

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
