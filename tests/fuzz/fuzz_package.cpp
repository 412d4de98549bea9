// SPDX-License-Identifier: Apache-2.0

// Fuzzes the code that reads the folder of a package: its manifests, the checksums of its files, and its records.
//
// Idea: an input holds the files of a package, and a byte that says which checksums are computed again when the files
// are written (altered_package.hpp). The mutator takes the files apart, so it changes JSON as a tree, records word by
// word, and any file byte by byte with the libFuzzer dictionary of compared values. A package that is accepted serves a
// request, so numbers that no check refuses are used.
//
// Example: the empty input stands for a valid package. The mutator sets "tokens" of a bucket to 2^63 and keeps the
// repair of the seal. read_package() must refuse it before memory is taken for it.
//
// Invariants: the only exception is a PackageError, and it names a file of the folder. A request is answered or refused
// by a RequestError. Complexity: linear in the size of the files.

#include "altered_package.hpp"
#include "temporary_directory.hpp"

#include <algorithm>
#include <cstring>
#include <random>
#include <span>
#include <string_view>

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

namespace {

using namespace headway::serving;

std::string_view text_of(std::uint8_t const* data, std::size_t size) {
  return {reinterpret_cast<char const*>(data), size};
}

/// The folder into which packages are written.
std::filesystem::path const& folder() {
  static headway::TemporaryDirectory const folder;
  return folder.path();
}

PackageFiles const& valid() {
  static PackageFiles const files = valid_package(folder());
  return files;
}

/// @returns the size, or 0 if the files do not fit
std::size_t put(PackageFiles const& files, std::uint8_t* data, std::size_t max_size) {
  auto const bytes = encode(files);
  if (bytes.size() > max_size) return 0;
  std::memcpy(data, bytes.data(), bytes.size());
  return bytes.size();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  write_package(size == 0 ? valid() : decode(text_of(data, size)), folder());
  auto const error = serve_package(folder());
  if (size == 0) require(error.empty(), "the valid package is served: " + error);
  return 0;
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                               unsigned seed) {
  std::mt19937 random(seed);
  constexpr std::size_t kLeastSize = 64;  // Shorter inputs have lost their files.
  auto files = size < kLeastSize ? valid() : decode(text_of(data, size));
  if (random() % 4 == 0) {
    auto& content = files.contents[random() % files.contents.size()];
    auto const old_size = content.size();
    content.resize(old_size + 64);
    content.resize(LLVMFuzzerMutate(reinterpret_cast<std::uint8_t*>(content.data()), old_size, content.size()));
  } else {
    PackageChanges changes(random);
    for (auto count = 1 + random() % 3; count > 0; --count) changes.alter(files);
  }
  auto const new_size = put(files, data, max_size);
  return new_size > 0 ? new_size : put(valid(), data, max_size);
}

extern "C" std::size_t LLVMFuzzerCustomCrossOver(std::uint8_t const* one, std::size_t one_size,
                                                 std::uint8_t const* other, std::size_t other_size, std::uint8_t* out,
                                                 std::size_t max_size, unsigned seed) {
  auto files = decode(text_of(one, one_size));
  auto const others = decode(text_of(other, other_size));
  for (std::size_t file = 0; file < files.contents.size(); ++file) {
    if ((seed >> file & 1) != 0) files.contents[file] = others.contents[file];
  }
  return put(files, out, max_size);
}
