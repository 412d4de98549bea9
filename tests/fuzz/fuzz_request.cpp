// SPDX-License-Identifier: Apache-2.0

// Fuzzes a request from the bytes of its message to the bytes of its reply, on one rank: parse_request(), the checks of
// sizes, the batch, a lookup in small tables and the response.
//
// Idea: an input is a message of the Open Inference Protocol. The mutator changes it by its fields
// (altered_message.hpp), and sometimes its bytes. A request that is accepted is answered in a batch of its own and
// behind another one.
//
// Example: the mutator makes the number of items of a user -1. The request is refused by an error that names `items`.
//
// Invariants: the only exception is a RequestError of readable length. The reply has the bits that it has in another
// batch. A response has each output at most once, so it is no larger than the model makes it.
// Complexity: linear in the size of the message.

#include "front/altered_message.hpp"

#include <google/protobuf/stubs/logging.h>

#include <cstring>
#include <random>
#include <string>
#include <string_view>

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

namespace {

using namespace headway::serving;

ModelInferRequest random_request(std::mt19937& random) {
  return MessageChanges(random).valid(random() % 4 == 0 ? model_of_items() : model_with_users());
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* /*argc*/, char*** /*argv*/) {
  google::protobuf::SetLogHandler(nullptr);  // It would log each text that is not UTF-8.
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  static MessageService service;
  static_cast<void>(service.answer({reinterpret_cast<char const*>(data), size}));
  return 0;
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                               unsigned seed) {
  std::mt19937 random(seed);
  if (size > 0 && random() % 8 == 0) return LLVMFuzzerMutate(data, size, max_size);
  ModelInferRequest message;
  if (size == 0 || random() % 64 == 0 || !message.ParseFromArray(data, static_cast<int>(size))) {
    message = random_request(random);
  }
  MessageChanges changes(random);
  for (auto count = random() % 3; count > 0; --count) changes.alter(message);
  auto const bytes = message.SerializeAsString();
  if (bytes.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
  std::memcpy(data, bytes.data(), bytes.size());
  return bytes.size();
}
