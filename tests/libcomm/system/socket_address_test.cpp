// SPDX-License-Identifier: Apache-2.0

// Text of socket addresses: accepted and refused forms, and IPv4-mapped addresses, which lose their prefix.

#include "system/socket_address.hpp"

#include <gtest/gtest.h>

namespace headway::comm {
namespace {

TEST(SocketAddressTest, TextIsReadAsItIsWritten) {
  for (auto const* text : {"10.1.2.3:4", "[fd00::1]:65535", "[::ffff:10.1.2.3]:80"}) {
    auto const address = SocketAddress::parse(text);
    ASSERT_TRUE(address) << text;
    EXPECT_EQ(address->to_string(), text);
  }
}

TEST(SocketAddressTest, TextThatIsNoAddressWithAPortIsRefused) {
  // Without brackets, 80 may be the port or the end of the address.
  for (auto const* text : {"", "10.1.2.3", "10.1.2.3:", "10.1.2.3:65536", "host:80", "fd00::1:80", "[fd00::1]"}) {
    EXPECT_FALSE(SocketAddress::parse(text)) << text;
  }
}

TEST(SocketAddressTest, OnlyMappedAddressesLoseTheirPrefix) {
  EXPECT_EQ(SocketAddress::parse("[::ffff:10.1.2.3]:80")->ip(), "10.1.2.3");
  EXPECT_EQ(SocketAddress::parse("[::ffff:0:a00:1]:80")->ip(), "::ffff:0:a00:1");
  EXPECT_EQ(SocketAddress::parse("[fd00::1]:80")->ip(), "fd00::1");
}

}  // namespace
}  // namespace headway::comm
