// SPDX-License-Identifier: Apache-2.0

// Messages that are damaged, doubled or out of place: roles refuse them by a text without ids, and go on. The fuzzer
// tests/fuzz/fuzz_hybrid.cpp searches longer; here are a fixed number of its changes.

#include "altered_messages.hpp"

#include <gtest/gtest.h>

namespace headway::hybrid {
namespace {

class DamagedMessages : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Roles, DamagedMessages, testing::Bool(),
                         [](auto const& of_test) { return of_test.param ? "Worker" : "Server"; });

TEST_P(DamagedMessages, AreRefusedOrAnswered) {
  std::mt19937 random(1);
  ListChanges changes(random, GetParam());
  for (int i = 0; i < 150; ++i) {
    auto list = changes.valid(12);
    for (auto count = random() % 6; count > 0; --count) changes.alter(list);
    ASSERT_EQ(decode_list(encode_list(list)), list);
    ASSERT_EQ(answer_list(list, GetParam(), true), "") << "list " << i;
  }
}

TEST_P(DamagedMessages, AreRefusedByEachDecoder) {
  std::mt19937 random(2);
  ListChanges changes(random, GetParam());
  for (int i = 0; i < 2000; ++i) {
    auto list = changes.valid(6);
    changes.alter(list);
    for (auto const& each : list) ASSERT_NO_THROW(decode_as_everything(each.body)) << "list " << i;
  }
}

}  // namespace
}  // namespace headway::hybrid
