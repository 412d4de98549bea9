// SPDX-License-Identifier: Apache-2.0

// The manifest of a package: a folder with a model for serving. headway.serving.package (Python) writes it, and
// explains its parts.

#pragma once

#include "headway/embedding/features.hpp"
#include "headway/embedding/initializer.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

namespace headway::serving {

/// A package is missing, damaged, or does not fit this process.
class PackageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Has a request one value of a feature for each user, or for each item?
enum class Axis : std::uint8_t { kUser, kItem };

struct ServedTable {
  std::string name;
  std::uint32_t id = 0;  ///< Id of the table in keys, which follows from its name.
  std::size_t dim = 0;
  std::uint32_t time_to_live = 0;  ///< See embedding::TableOptions.
  bool reads_unknown_as_zeros = false;
  embedding::Initializer initializer = embedding::Initializer::constant(0);
};

/// A feature that is looked up.
struct ServedFeature {
  static constexpr std::size_t kNoSequence = SIZE_MAX;

  std::string name;
  std::size_t table = 0;  ///< Index into Manifest::tables.
  Axis axis = Axis::kItem;
  embedding::Pooling pooling = embedding::Pooling::kSum;
  std::size_t sequence = kNoSequence;  ///< Index into Manifest::sequences, for features without pooling.
  bool is_single = false;              ///< Each list has exactly one id.
};

/// `width` float32 numbers of each user or item.
struct DenseFeature {
  std::string name;
  std::size_t width = 0;
  Axis axis = Axis::kItem;
};

/// Numbers of items, users, and values of each sequence over all users.
struct Sizes {
  std::size_t items = 0, users = 0, tokens = 0;

  [[nodiscard]] bool holds(Sizes const& other) const {
    return other.items <= items && other.users <= users && other.tokens <= tokens;
  }
  [[nodiscard]] std::size_t of(Axis axis) const { return axis == Axis::kUser ? users : items; }
  Sizes& operator+=(Sizes const& other) {
    items += other.items, users += other.users, tokens += other.tokens;
    return *this;
  }
  friend bool operator==(Sizes const&, Sizes const&) = default;
};

/// The dense part of the model, compiled for batches of one size (a bucket).
struct CompiledPart {
  Sizes bucket;
  std::string file;  ///< Name in the folder.
  std::uint64_t num_bytes = 0;
  std::uint32_t crc32 = 0;
};

/// A block of records (embedding::RecordBlock), with its file and merged table.
struct TableBlock {
  std::string file;  ///< Name in the folder of the tables.
  std::uint64_t offset = 0, num_bytes = 0;
  std::uint32_t crc32 = 0;
  std::uint64_t num_keys = 0;
  std::uint32_t first_bucket = 0, end_bucket = 0;
  std::size_t dim = 0, state_size = 0;
};

/// The rows of a package: blocks of records in files.
struct SavedTables {
  std::uint32_t step = 0;
  std::uint32_t routing_version = 0;
  std::vector<TableBlock> blocks;
};

/// Everything in a package but rows and code. The compiled parts take a tensor for each of these, in this order: the
/// embeddings of each feature, the lengths of each sequence, each dense feature, and the number of items of each user
/// if there are users.
struct Manifest {
  std::string version, torch_version;
  bool is_for_cuda = false;               ///< The compiled parts run on a CUDA device.
  std::vector<std::string> cpu_features;  ///< Instruction set that they need; see missing_cpu_features().
  std::uint64_t number = 0;               ///< Checksum of the manifests: equal numbers mean the same package.
  std::vector<ServedTable> tables;
  std::vector<ServedFeature> features;
  std::vector<std::string> sequences;
  std::vector<DenseFeature> dense_features;
  std::size_t longest = SIZE_MAX;  ///< Most values of a sequence of one user plus items of this user.
  std::vector<std::string> outputs;
  std::vector<CompiledPart> parts;
  SavedTables saved;

  [[nodiscard]] bool has_users() const;
};

/// Compares what requests and replies depend on: names, dims, pooling and order of tables, features and outputs.
/// @returns the first difference; empty if requests for one model fit the other
[[nodiscard]] std::string describe_difference(Manifest const& one, Manifest const& other);

/// Number of the package of a folder (Manifest::number). Reads the manifests alone, without a check.
/// @throws PackageError if they cannot be read
[[nodiscard]] std::uint64_t package_number(std::filesystem::path const& folder);

/// Reads the manifest of a folder, and that of its tables. Checks size and checksum of each compiled file.
/// @throws PackageError that names the file
[[nodiscard]] Manifest read_package(std::filesystem::path const& folder);

}  // namespace headway::serving
