// SPDX-License-Identifier: Apache-2.0

// Messages that are damaged: they are refused by a RequestError, or answered. The fuzzer tests/fuzz/fuzz_request.cpp
// searches longer; here are a fixed number of its changes, and a test for each fault that it has found.

#include "altered_message.hpp"

#include <gtest/gtest.h>

#include <functional>

namespace headway::serving {
namespace {

/// Why a request is refused after a change; empty if it is answered.
std::string error_after(std::function<void(ModelInferRequest&)> const& change) {
  static MessageService service;
  std::mt19937 random(4);
  auto message = MessageChanges(random).valid(model_with_users());
  change(message);
  return service.answer(message.SerializeAsString());
}

TEST(DamagedMessage, random_changes_are_refused_or_answered) {
  MessageService service;
  std::mt19937 random(5);
  MessageChanges changes(random);
  std::size_t num_answered = 0;
  constexpr std::size_t kMessages = 6000;
  for (std::size_t i = 0; i < kMessages; ++i) {
    auto message = changes.valid(i % 3 == 0 ? model_of_items() : model_with_users());
    for (auto count = random() % 3; count > 0; --count) changes.alter(message);
    SCOPED_TRACE("message " + std::to_string(i));
    std::string error;
    EXPECT_NO_THROW(error = service.answer(message.SerializeAsString()));
    num_answered += error.empty() ? 1 : 0;
  }
  EXPECT_GT(num_answered, kMessages / 4);
  EXPECT_LT(num_answered, kMessages);
}

TEST(DamagedMessage, long_names_do_not_make_long_errors) {
  // A character of two bytes at the limit is left out as a whole.
  std::string const longest = std::string(99, 'n') + "\u00e4" + std::string(100'000, 'n');
  EXPECT_EQ(error_after([&](auto& message) { message.add_outputs()->set_name(longest); }),
            "the model has no output " + std::string(99, 'n') + "...");
  EXPECT_LT(error_after([&](auto& message) { message.mutable_inputs(0)->set_name(longest); }).size(), 200);
  EXPECT_LT(error_after([&](auto& message) { message.mutable_inputs(0)->set_datatype(longest); }).size(), 300);
  EXPECT_LT(error_after([](auto& message) {
              for (int i = 0; i < 100'000; ++i) message.mutable_inputs(0)->add_shape(i);
            }).size(),
            300);
}

TEST(DamagedMessage, control_characters_are_kept_out_of_errors) {
  EXPECT_EQ(error_after([](auto& message) { message.add_outputs()->set_name(std::string("\0\n\x7fx", 4)); }),
            "the model has no output ???x");
}

TEST(DamagedMessage, an_output_is_given_once) {
  EXPECT_EQ(error_after([](auto& message) {
              message.clear_outputs();
              for (int i = 0; i < 1000; ++i) message.add_outputs()->set_name("score");
            }),
            "score is wanted twice");
}

}  // namespace
}  // namespace headway::serving
