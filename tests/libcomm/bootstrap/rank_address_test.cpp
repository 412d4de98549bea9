// SPDX-License-Identifier: Apache-2.0

// Text form of rank addresses, and the errors of those that cannot be read.
//
// A rank publishes its address in the store or sends it to rank 0. Rank 0 passes all of them on in one message, without
// its own, which the receivers have already. So the first entry is empty. An instance is 32 hexadecimal digits.

#include "bootstrap/rank_address.hpp"

#include "headway/comm/status.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace headway::comm {
namespace {

RankAddress address_of(int rank) {
  RankAddress address;
  address.host = "boot/4026531840";  // Boot id and network namespace.
  address.local_name = "headway-" + std::to_string(rank);
  address.instance.fill(static_cast<std::byte>(rank));
  return address;
}

/// The message of a SystemError that `call` throws.
template <class Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (SystemError const& error) {
    return error.what();
  }
  return "no error";
}

TEST(RankAddresses, AreThoseThatWereEncoded) {
  auto const body = encode_rank_addresses({"", encode_rank_address(address_of(1)), encode_rank_address(address_of(2))});
  auto const decoded = decode_rank_addresses(body, 3);
  ASSERT_EQ(decoded.size(), 3U);
  EXPECT_EQ(decoded[2].instance, address_of(2).instance);
  EXPECT_EQ(decoded[2].host, "boot/4026531840");
  EXPECT_EQ(decoded[2].local_name, "headway-2");
}

TEST(RankAddresses, AnErrorNamesTheRankAndWhereItsAddressComesFrom) {
  EXPECT_NE(error_of([] {
              static_cast<void>(decode_rank_address("instance 12\n", 0));
            }).find("the address of rank 0 in the store cannot be read ('instance 12')"),
            std::string::npos);
  auto const body = encode_rank_addresses({"", "nonsense 1\n"});
  EXPECT_NE(error_of([&] {
              static_cast<void>(decode_rank_addresses(body, 2));
            }).find("the address of rank 1 in the message of rank 0 cannot be read ('nonsense 1')"),
            std::string::npos);
}

TEST(RankAddresses, AMessageOfTheWrongLengthIsNamedAsSuch) {
  auto body = encode_rank_addresses({"", encode_rank_address(address_of(1)), encode_rank_address(address_of(2))});
  for (int const size : {2, 4}) {
    EXPECT_NE(error_of([&] { static_cast<void>(decode_rank_addresses(body, size)); }).find("too short or too long"),
              std::string::npos)
        << size;
  }
  body.resize(body.size() - 3);
  EXPECT_NE(error_of([&] { static_cast<void>(decode_rank_addresses(body, 3)); }).find("too short or too long"),
            std::string::npos);
}

}  // namespace
}  // namespace headway::comm
