// SPDX-License-Identifier: Apache-2.0

// Fuzzes requests to a parameter server or an embedding worker of hybrid training, and all decoders of messages.
//
// Idea: an input is a list of requests, and its first byte tells the role. The mutator changes lists by their requests
// (altered_messages.hpp), and sometimes their bytes. A new role answers each list. Then each body is decoded as each
// message there is, as a client would with an answer.
//
// Example: the mutator moves the gradients of a batch before its lookup. The server refuses them.
//
// Invariants: roles answer or refuse, with a readable text, and answer a status at the end. Decoders throw
// base::UsageError alone.
// Complexity: linear in the size of the list; two links are made for each input.

#include "altered_messages.hpp"

#include <cstdio>
#include <cstdlib>

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

using namespace headway::hybrid;

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  if (size == 0) return 0;
  auto const list = decode_list(std::as_bytes(std::span(data + 1, size - 1)));
  if (auto const error = answer_list(list, data[0] % 2 == 1, false); !error.empty()) {
    std::fprintf(stderr, "an invariant does not hold: %s\n", error.c_str());
    std::abort();
  }
  for (auto const& each : list) decode_as_everything(each.body);
  return 0;
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                               unsigned seed) {
  std::mt19937 random(seed);
  if (size > 0 && random() % 8 == 0) return LLVMFuzzerMutate(data, size, max_size);
  bool const is_of_worker = size > 0 ? data[0] % 2 == 1 : random() % 2 == 1;
  ListChanges changes(random, is_of_worker);
  auto list = size > 1 && random() % 64 != 0 ? decode_list(std::as_bytes(std::span(data + 1, size - 1)))
                                             : changes.valid(2 + random() % 12);
  for (auto count = 1 + random() % 3; count > 0; --count) changes.alter(list);
  auto const bytes = encode_list(list);
  if (bytes.size() + 1 > max_size) return LLVMFuzzerMutate(data, size, max_size);
  data[0] = is_of_worker ? 1 : 0;
  if (!bytes.empty()) std::memcpy(data + 1, bytes.data(), bytes.size());
  return bytes.size() + 1;
}
