// SPDX-License-Identifier: Apache-2.0
#include "headway/serving/package.hpp"

#include "headway/base/crc32.hpp"
#include "headway/base/status.hpp"
#include "headway/embedding/routing.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <span>
#include <string_view>
#include <system_error>
#include <tuple>
#include <type_traits>
#include <utility>

namespace headway::serving {

namespace {

using nlohmann::json;

constexpr std::uint32_t kFormat = 1;
/// Limits of numbers in a manifest. They are far beyond those of models, and keep a damaged number from taking memory.
constexpr std::size_t kMostColumns = std::size_t{1} << 20, kMostRows = std::size_t{1} << 24;
constexpr std::uint64_t kMostElements = std::uint64_t{1} << 32;  ///< All inputs of a bucket.

std::string read_file(std::filesystem::path const& path) {
  std::error_code ignored;  // Then it is no file.
  std::ifstream file(path, std::ios::binary);
  if (!file || !std::filesystem::is_regular_file(path, ignored)) throw PackageError(path.string() + " cannot be read");
  return {std::istreambuf_iterator<char>(file), {}};
}

std::uint32_t crc32_of(std::string const& text) { return base::crc32(std::as_bytes(std::span(text))); }

/// A whole number of an object. json::get() would wrap negative numbers, and cut off fractions.
/// @throws PackageError that names it, if it is none or not within the limits
template <class T>
T number_of(json const& object, std::string const& name, T least = 0, T most = std::numeric_limits<T>::max()) {
  auto const& value = object.at(name);
  if (value.is_number_unsigned()) {
    auto const number = value.get<std::uint64_t>();
    if (number >= least && number <= most) return static_cast<T>(number);
  }
  throw PackageError("\"" + name + "\" must be a whole number from " + std::to_string(least) + " to " +
                     std::to_string(most) + ", not " + (value.is_number() ? value.dump() : value.type_name()));
}

/// Reads JSON that sealed_json.py has written, with a checksum of its text.
json unseal(std::filesystem::path const& path) {
  auto const envelope = json::parse(read_file(path));
  auto const body = envelope.at("manifest").get<std::string>();
  if (number_of<std::uint32_t>(envelope, "format") != kFormat ||
      crc32_of(body) != number_of<std::uint32_t>(envelope, "crc32")) {
    throw PackageError(path.string() + " has another format, or was altered");
  }
  return json::parse(body);
}

/// One of several values by its name.
template <class T>
T named(json const& name, std::map<std::string, T> const& values) {
  auto const text = name.is_null() ? std::string("none") : name.get<std::string>();
  auto const found = values.find(text);
  if (found == values.end()) throw PackageError("\"" + text + "\" is not known");
  return found->second;
}

/// Name of a file in the folder of the manifest.
std::string file_of(json const& text) {
  auto name = text.at("file").get<std::string>();
  if (name.empty() || name.find_first_of(std::string_view("/\0", 2)) != std::string::npos) {
    throw PackageError("file " + text.at("file").dump() + " leaves the folder");
  }
  return name;
}

/// @throws PackageError if two of them have the same name
void expect_different_names(std::vector<std::string> names) {
  std::ranges::sort(names);
  auto const twice = std::ranges::adjacent_find(names);
  if (twice != names.end()) throw PackageError(*twice + " is there twice");
}

Axis axis_of(json const& name) { return named<Axis>(name, {{"user", Axis::kUser}, {"item", Axis::kItem}}); }

embedding::Initializer initializer_of(json const& text, std::uint64_t seed) {
  auto const kind = text.at("kind").get<std::string>();
  auto const number = [&](char const* name) { return static_cast<float>(text.at(name).get<double>()); };
  if (kind == "constant") return embedding::Initializer::constant(number("value"));
  if (kind == "uniform") return embedding::Initializer::uniform(number("low"), number("high"), seed);
  if (kind == "normal") return embedding::Initializer::normal(number("mean"), number("std"), seed);
  throw PackageError("initializer \"" + kind + "\" is not known");
}

Sizes sizes_of(json const& text) {
  return {.items = number_of<std::size_t>(text, "items", 1, kMostRows),
          .users = number_of<std::size_t>(text, "users", 0, kMostRows),
          .tokens = number_of<std::size_t>(text, "tokens", 0, kMostRows)};
}

void read_tables_of(json const& values, Manifest& manifest) {
  auto const seed = number_of<std::uint64_t>(values, "seed");
  for (auto const& each : values.at("tables")) {
    auto const name = each.at("name").get<std::string>();
    manifest.tables.push_back(
        {.name = name,
         .id = crc32_of(name),  // headway.embedding.merging.table_id_of()
         .dim = number_of<std::size_t>(each, "dim", 1, kMostColumns),
         .time_to_live = number_of<std::uint32_t>(each, "time_to_live"),
         .reads_unknown_as_zeros = named<bool>(each.at("unknown"), {{"initial", false}, {"zeros", true}}),
         .initializer = initializer_of(each.at("initializer"), seed)});
  }
  std::vector<std::string> names;
  std::map<std::uint32_t, std::string> name_of;
  for (auto const& table : manifest.tables) {
    names.push_back(table.name);
    auto const [other, is_new] = name_of.emplace(table.id, table.name);
    if (!is_new && other->second != table.name) {
      throw PackageError("tables " + other->second + " and " + table.name + " have the same id");
    }
  }
  expect_different_names(std::move(names));
}

template <class T>
std::size_t index_of(std::vector<T> const& all, auto const& is_wanted, std::string const& error) {
  auto const found = std::ranges::find_if(all, is_wanted);
  if (found == all.end()) throw PackageError(error);
  return static_cast<std::size_t>(found - all.begin());
}

void read_features_of(json const& values, Manifest& manifest) {
  using embedding::Pooling;
  for (auto const& each : values.at("features")) {
    ServedFeature feature{.name = each.at("name").get<std::string>()};
    auto const table = each.at("table").get<std::string>();
    feature.table = index_of(
        manifest.tables, [&](auto const& candidate) { return candidate.name == table; },
        "feature " + feature.name + ": there is no table " + table);
    feature.axis = axis_of(each.at("axis"));
    feature.pooling = named<Pooling>(each.at("pooling"),
                                     {{"sum", Pooling::kSum}, {"mean", Pooling::kMean}, {"none", Pooling::kNone}});
    if (auto const& sequence = each.at("sequence"); !sequence.is_null()) {
      auto const name = sequence.get<std::string>();
      auto& names = manifest.sequences;
      if (std::ranges::find(names, name) == names.end()) names.push_back(name);
      feature.sequence = index_of(
          names, [&](auto const& candidate) { return candidate == name; }, "");
    }
    if ((feature.pooling == Pooling::kNone) != (feature.sequence != ServedFeature::kNoSequence)) {
      throw PackageError("feature " + feature.name + " has no pooling and no sequence, or both");
    }
    if (feature.pooling == Pooling::kNone && feature.axis != Axis::kUser) {
      throw PackageError("feature " + feature.name + ": sequences belong to users");
    }
    feature.is_single = each.at("is_single").get<bool>();
    manifest.features.push_back(std::move(feature));
  }
  for (auto const& each : values.at("dense_features")) {
    manifest.dense_features.push_back({.name = each.at("name").get<std::string>(),
                                       .width = number_of<std::size_t>(each, "width", 1, kMostColumns),
                                       .axis = axis_of(each.at("axis"))});
  }
  std::vector<std::string> names;
  for (auto const& feature : manifest.features) names.push_back(feature.name);
  for (auto const& dense : manifest.dense_features) names.push_back(dense.name);
  expect_different_names(std::move(names));
}

/// Checks that the inputs of a bucket are no larger than memory. Limits of each factor keep the sum from overflowing.
void expect_room(Manifest const& manifest, CompiledPart const& part) {
  std::uint64_t num_elements = 0;
  auto const add = [&](std::uint64_t rows, std::uint64_t columns) {
    num_elements += rows * columns;
    if (num_elements <= kMostElements) return;
    throw PackageError(part.file + ": the inputs of its bucket have more than " + std::to_string(kMostElements) +
                       " elements");
  };
  auto const& bucket = part.bucket;
  for (auto const& feature : manifest.features) {
    bool const is_pooled = feature.pooling != embedding::Pooling::kNone;
    add(is_pooled ? bucket.of(feature.axis) : bucket.tokens, manifest.tables[feature.table].dim);
  }
  for (auto const& dense : manifest.dense_features) add(bucket.of(dense.axis), dense.width);
  add(bucket.users, manifest.sequences.size() + 1);
}

void read_parts_of(json const& values, Manifest& manifest) {
  for (auto const& each : values.at("parts")) {
    manifest.parts.push_back({.bucket = sizes_of(each.at("bucket")),
                              .file = file_of(each),
                              .num_bytes = number_of<std::uint64_t>(each, "num_bytes"),
                              .crc32 = number_of<std::uint32_t>(each, "crc32")});
    expect_room(manifest, manifest.parts.back());
  }
  if (manifest.parts.empty() || manifest.features.empty()) throw PackageError("it has no bucket, or no feature");
  manifest.outputs = values.at("outputs").get<std::vector<std::string>>();
  if (manifest.outputs.empty()) throw PackageError("it has no output");
  expect_different_names(manifest.outputs);
}

/// Keys that wait for a row are left out: lookups that only read give their initial embeddings.
SavedTables saved_tables(std::filesystem::path const& path) {
  auto const values = unseal(path);
  SavedTables saved{.step = number_of<std::uint32_t>(values, "step"),
                    .routing_version = number_of<std::uint32_t>(values, "routing_version"),
                    .blocks = {}};
  auto const& groups = values.at("groups");
  for (auto const& each : values.at("blocks")) {
    if (each.at("pending").get<bool>()) continue;
    auto const& group = groups.at(number_of<std::size_t>(each, "group"));
    auto const& block =
        saved.blocks.emplace_back(TableBlock{.file = file_of(each),
                                             .offset = number_of<std::uint64_t>(each, "offset"),
                                             .num_bytes = number_of<std::uint64_t>(each, "num_bytes"),
                                             .crc32 = number_of<std::uint32_t>(each, "crc32"),
                                             .num_keys = number_of<std::uint64_t>(each, "num_keys"),
                                             .first_bucket = number_of<std::uint32_t>(each, "first_bucket"),
                                             .end_bucket = number_of<std::uint32_t>(each, "end_bucket"),
                                             .dim = number_of<std::size_t>(group, "dim"),
                                             .state_size = number_of<std::size_t>(group, "state_size")});
    // Ranks leave out blocks whose buckets are not theirs, so a wrong range would hide rows.
    bool const is_range = block.first_bucket < block.end_bucket && block.end_bucket <= embedding::kNumVirtualBuckets;
    if (saved.routing_version == embedding::kRoutingVersion && !is_range) {
      throw PackageError("a block of " + block.file + " has no virtual buckets from " +
                         std::to_string(block.first_bucket) + " to " + std::to_string(block.end_bucket));
    }
  }
  return saved;
}

void expect_files(Manifest const& manifest, std::filesystem::path const& folder) {
  for (auto const& part : manifest.parts) {
    auto const path = folder / part.file;
    auto const content = read_file(path);
    if (content.size() != part.num_bytes || crc32_of(content) != part.crc32) {
      throw PackageError(path.string() + " was truncated or altered");
    }
  }
}

template <class Read>
auto naming(std::filesystem::path const& path, Read const& read) {
  try {
    return read();
  } catch (PackageError const& error) {
    throw PackageError(path.string() + ": " + error.what());
  } catch (json::exception const& error) {
    throw PackageError(path.string() + ": " + error.what());
  } catch (base::UsageError const& error) {
    throw PackageError(path.string() + ": " + error.what());
  }
}

}  // namespace

bool Manifest::has_users() const {
  auto const is_of_users = [](auto const& each) { return each.axis == Axis::kUser; };
  return std::ranges::any_of(features, is_of_users) || std::ranges::any_of(dense_features, is_of_users);
}

std::string describe_difference(Manifest const& one, Manifest const& other) {
  auto const names_of = [](auto const& all) {
    std::string names;
    for (auto const& each : all) names += (names.empty() ? "" : ", ") + each.name;
    return names;
  };
  auto const compare = [](std::string const& what, auto const& some, auto const& others, auto const& are_alike) {
    if (!std::ranges::equal(some, others, {}, &std::decay_t<decltype(some[0])>::name,
                            &std::decay_t<decltype(some[0])>::name)) {
      return what + "s differ";
    }
    for (std::size_t i = 0; i < some.size(); ++i) {
      if (!are_alike(some[i], others[i])) return what + " " + some[i].name + " differs";
    }
    return std::string();
  };
  auto difference = compare("table", one.tables, other.tables,
                            [](ServedTable const& a, ServedTable const& b) { return a.dim == b.dim; });
  if (difference.empty()) {
    difference = compare("feature", one.features, other.features, [&](ServedFeature const& a, ServedFeature const& b) {
      return std::tuple(a.table, a.axis, a.pooling, a.sequence, a.is_single) ==
             std::tuple(b.table, b.axis, b.pooling, b.sequence, b.is_single);
    });
  }
  if (difference.empty()) {
    difference =
        compare("dense feature", one.dense_features, other.dense_features,
                [](DenseFeature const& a, DenseFeature const& b) { return a.width == b.width && a.axis == b.axis; });
  }
  if (!difference.empty()) return difference + ": " + names_of(one.features) + " and " + names_of(other.features);
  if (one.outputs != other.outputs) return "outputs differ";
  if (one.longest != other.longest) return "the longest sequence of a user differs";
  return "";
}

std::uint64_t package_number(std::filesystem::path const& folder) {
  return std::uint64_t{crc32_of(read_file(folder / "manifest.json"))} << 32 |
         crc32_of(read_file(folder / "tables" / "manifest.json"));
}

Manifest read_package(std::filesystem::path const& folder) {
  auto const path = folder / "manifest.json", tables_path = folder / "tables" / "manifest.json";
  auto manifest = naming(path, [&] {
    auto const values = unseal(path);
    Manifest read;
    read.version = values.at("version").get<std::string>();
    read.torch_version = values.at("torch_version").get<std::string>();
    auto const device = values.value("device", "cpu");
    if (device != "cpu" && device != "cuda") throw PackageError("device " + device + " is not known");
    read.is_for_cuda = device == "cuda";
    read.cpu_features = values.value("cpu_features", std::vector<std::string>());
    read_tables_of(values, read);
    read_features_of(values, read);
    read_parts_of(values, read);
    if (!values.at("longest").is_null()) read.longest = number_of<std::size_t>(values, "longest");
    return read;
  });
  manifest.saved = naming(tables_path, [&] { return saved_tables(tables_path); });
  manifest.number = package_number(folder);
  expect_files(manifest, folder);
  return manifest;
}

}  // namespace headway::serving
