// SPDX-License-Identifier: Apache-2.0

// The files of a small package in memory, and random changes of them, for tests of damage and for a fuzzer.
//
// Idea: checksums guard every file, so most changes of bytes end at a checksum. The code behind the checksums is
// reached by a repair: the sums are computed again after the change, as a faulty or hostile writer would. JSON is
// changed as a tree as well as a text, since a random byte rarely gives JSON of another meaning.
//
// Example: the change sets "dim" of the first group of tables to -1. Without a repair, read_package() says that
// tables/manifest.json was altered. With the repair kSealTables it parses -1.
//
// Invariants: the same seed gives the same changes. Each file is at most kMostBytes long.
// Complexity: linear in the size of the files for a change.

#pragma once

#include "headway/base/crc32.hpp"
#include "headway/embedding/record_file.hpp"
#include "headway/embedding/routing.hpp"
#include "headway/serving/tables.hpp"
#include "trial_service.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace headway::serving {

using nlohmann::json;

/// Contents of the files of a package. With kSealManifest and kSealTables, those of the manifests are the text inside
/// of the seal, which is added when the file is written; without, they are the whole file.
struct PackageFiles {
  enum File : std::uint8_t { kManifest, kTables, kRows, kDense, kNumFiles };
  enum Repair : std::uint8_t {
    kSealManifest = 1,
    kSealTables = 2,
    kSumParts = 4,   ///< Sizes and checksums of compiled files, in a manifest that is sealed.
    kSumBlocks = 8,  ///< Checksums of blocks of records, in a manifest of tables that is sealed.
    kAllRepairs = 15
  };
  static constexpr std::size_t kMostBytes = std::size_t{1} << 16;

  std::array<std::string, kNumFiles> contents;
  std::uint8_t repairs = kAllRepairs;

  [[nodiscard]] bool repairs_with(Repair repair) const { return (repairs & repair) != 0; }
};

inline std::uint32_t crc32_of(std::string_view text) { return base::crc32(std::as_bytes(std::span(text))); }

/// A whole number of JSON. @throws json::exception if it is none; json::get() would cut off fractions
inline std::uint64_t unsigned_of(json const& value) {
  return value.is_number_unsigned() ? value.get<std::uint64_t>() : json().get<std::uint64_t>();
}

/// Writes the rows of a table into a file of records, and adds its blocks to the manifest of the tables.
inline void write_rows(embedding::RecordFileWriter& writer, embedding::Table& table, std::size_t group, json& groups) {
  writer.write(table, false, 0, embedding::kNumVirtualBuckets);
  while (groups.size() < writer.num_blocks()) groups.push_back(group);
}

/// A package of three tables, of which "items" and "topics" are merged, with features of all kinds.
inline PackageFiles valid_package(std::filesystem::path const& folder) {
  std::filesystem::create_directories(folder / "tables");
  PackageFiles files;
  files.contents[PackageFiles::kDense] = "machine code";
  auto const add_rows = [](embedding::Table& table, std::string_view name, std::uint64_t num_rows) {
    for (std::uint64_t id = 0; id < num_rows; ++id) {
      std::vector<float> const row(table.dim(), 0.25F * static_cast<float>(id));
      embedding::KeyStatus status;
      table.insert_or_assign({.ids = {&id, 1}, .table = crc32_of(name)}, row, {&status, 1});
    }
  };
  auto const items = embedding::make_cpu_table({.dim = 2}), users = embedding::make_cpu_table({.dim = 3});
  users->begin_step(6, 6);
  add_rows(*items, "items", 24);
  add_rows(*items, "topics", 8);
  add_rows(*users, "users", 16);
  auto const path = folder / "tables" / "rows";
  embedding::RecordFileWriter writer(path, 20);
  json group_of = json::array(), blocks = json::array();
  write_rows(writer, *items, 0, group_of);
  write_rows(writer, *users, 1, group_of);
  for (auto const& block : writer.finish()) {
    blocks.push_back({{"file", "rows"},
                      {"offset", block.offset},
                      {"num_bytes", block.num_bytes},
                      {"crc32", block.crc32},
                      {"group", group_of[blocks.size()]},
                      {"pending", false},
                      {"num_keys", block.num_keys},
                      {"first_bucket", block.first_bucket},
                      {"end_bucket", block.end_bucket}});
  }
  std::ifstream file(path, std::ios::binary);
  files.contents[PackageFiles::kRows] = {std::istreambuf_iterator<char>(file), {}};
  auto const group = [](std::vector<std::string> const& tables, std::size_t dim) {
    return json{{"tables", tables}, {"dim", dim}, {"state_size", 0}, {"optimizer", "NoOptimizer"}};
  };
  files.contents[PackageFiles::kTables] = json{{"step", 7},
                                               {"routing_version", embedding::kRoutingVersion},
                                               {"blocks", blocks},
                                               {"groups", {group({"items", "topics"}, 2), group({"users"}, 3)}}}
                                              .dump();
  json const constant{{"kind", "constant"}, {"value", 0.5}};
  auto const table = [](std::string const& name, std::size_t dim, int time_to_live, json const& initializer) {
    return json{{"name", name},
                {"dim", dim},
                {"time_to_live", time_to_live},
                {"unknown", "zeros"},
                {"initializer", initializer}};
  };
  auto const feature = [](std::string const& name, std::string const& of_table, std::string const& axis,
                          json const& pooling, json const& sequence, bool is_single) {
    return json{{"name", name},       {"table", of_table},    {"axis", axis},
                {"pooling", pooling}, {"sequence", sequence}, {"is_single", is_single}};
  };
  auto const part = [](std::size_t num_items, std::size_t num_users, std::size_t num_tokens) {
    return json{{"bucket", {{"items", num_items}, {"users", num_users}, {"tokens", num_tokens}}},
                {"file", "dense.pt2"},
                {"num_bytes", 12},
                {"crc32", crc32_of("machine code")}};
  };
  files.contents[PackageFiles::kManifest] = json{
      {"version", "1"},
      {"torch_version", "2.14.0"},
      {"device", "cpu"},
      {"cpu_features", {"x86_64", "avx2"}},
      {"seed", 5},
      {"tables",
       {table("items", 2, 0, constant), table("topics", 2, 0, constant),
        table("users", 3, 4, {{"kind", "uniform"}, {"low", -1.0}, {"high", 1.0}})}},
      {"features",
       {feature("history", "items", "user", nullptr, "events", false),
        feature("about", "topics", "user", nullptr, "events", false),
        feature("user", "users", "user", "sum", nullptr, true),
        feature("item", "items", "item", "mean", nullptr, false)}},
      {"dense_features", {{{"name", "price"}, {"width", 3}, {"axis", "item"}}}},
      {"longest", 40},
      {"outputs", {"click", "buy"}},
      {"parts",
       {part(4, 1, 8), part(16, 4, 32)}}}.dump();
  return files;
}

/// Bytes for a fuzzer: the repairs, then the size of each file in four bytes and its contents.
inline std::string encode(PackageFiles const& files) {
  std::string bytes(1, static_cast<char>(files.repairs));
  for (auto const& content : files.contents) {
    auto const size = static_cast<std::uint32_t>(content.size());
    bytes.append(reinterpret_cast<char const*>(&size), sizeof(size)).append(content);
  }
  return bytes;
}

/// The files of any bytes. Files that are cut off, or not there, are short or empty.
inline PackageFiles decode(std::string_view bytes) {
  PackageFiles files;
  if (bytes.empty()) return files;
  files.repairs = static_cast<std::uint8_t>(bytes[0]);
  bytes.remove_prefix(1);
  for (auto& content : files.contents) {
    std::uint32_t size = 0;
    if (bytes.size() < sizeof(size)) return files;
    std::memcpy(&size, bytes.data(), sizeof(size));
    bytes.remove_prefix(sizeof(size));
    content = bytes.substr(0, std::min<std::size_t>(size, PackageFiles::kMostBytes));
    bytes.remove_prefix(content.size());
  }
  return files;
}

/// Random changes. The same generator gives the same changes.
class PackageChanges {
 public:
  explicit PackageChanges(std::mt19937& random) : random_(random) {}

  void alter(PackageFiles& files) {
    auto const file = below(PackageFiles::kNumFiles);
    auto& content = files.contents[file];
    bool const is_json = file == PackageFiles::kManifest || file == PackageFiles::kTables;
    if (below(16) == 0) files.repairs ^= static_cast<std::uint8_t>(1U << below(4));
    if (is_json && below(4) > 0) {
      auto values = json::parse(content, nullptr, false);
      if (!values.is_discarded()) {
        if (file == PackageFiles::kTables && below(3) == 0) {
          fit_a_block(values);
        } else {
          alter_json(values);
        }
        content = values.dump();
        return;
      }
    }
    if (file == PackageFiles::kRows && below(4) > 0) return alter_words(content);
    alter_bytes(content);
  }

 private:
  [[nodiscard]] std::size_t below(std::size_t limit) { return random_() % limit; }
  [[nodiscard]] json odd_value() {
    static json const values = {nullptr,
                                true,
                                false,
                                0,
                                1,
                                2,
                                3,
                                -1,
                                16'383,
                                16'384,
                                16'385,
                                1 << 20,
                                (1 << 20) + 1,
                                INT32_MAX,
                                UINT32_MAX,
                                std::uint64_t{1} << 32,
                                INT64_MAX,
                                INT64_MIN,
                                UINT64_MAX,
                                0.5,
                                -0.0,
                                1e30,
                                1e300,
                                -1e300,
                                "",
                                "item",
                                "user",
                                "sum",
                                "mean",
                                "none",
                                "normal",
                                "constant",
                                "events",
                                "items",
                                ".",
                                "..",
                                "rows",
                                "../rows",
                                "tables",
                                std::string("rows\0", 5),
                                std::string(300, 'x'),
                                json::array(),
                                json::object()};
    return values[below(values.size())];
  }

  /// All values of a document, the document first.
  static std::vector<json*> nodes_of(json& root) {
    std::vector<json*> nodes{&root};
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      if (!nodes[i]->is_structured()) continue;
      for (auto& child : *nodes[i]) nodes.push_back(&child);
    }
    return nodes;
  }

  void alter_json(json& root) {
    auto const nodes = nodes_of(root);
    auto& node = *nodes[below(nodes.size())];
    switch (below(6)) {
      case 0:
        node = json(*nodes[below(nodes.size())]);
        break;
      case 1:
        if (node.is_array() && !node.empty()) {
          node.push_back(json(node[below(node.size())]));
        } else if (node.is_number_integer()) {
          node = node.get<std::uint64_t>() + below(5) - 2;
        }
        break;
      case 2:
        if (node.is_structured() && !node.empty()) {
          auto child = node.begin();
          std::advance(child, below(node.size()));
          node.erase(child);
        }
        break;
      case 3:
        if (node.is_number_integer()) {
          node = node.get<std::uint64_t>() ^ (std::uint64_t{1} << below(64));
          break;
        }
        [[fallthrough]];
      default:
        node = odd_value();
    }
  }

  /// Changes the numbers of a block so that its size is that of its records.
  void fit_a_block(json& values) {
    try {
      auto& block = values.at("blocks").at(below(values.at("blocks").size() + 1));
      auto& group = values.at("groups").at(unsigned_of(block.at("group")));
      if (below(2) == 0) group["dim"] = below(6);
      if (below(2) == 0) group["state_size"] = below(6);
      if (below(2) == 0) block["num_keys"] = below(24);
      auto const width = 20 + 4 * (unsigned_of(group.at("dim")) + unsigned_of(group.at("state_size")));
      block["num_bytes"] = width * unsigned_of(block.at("num_keys"));
    } catch (json::exception const&) {  // An earlier change has removed one of them.
    }
  }

  /// Changes the words of records: ids, numbers of tables, counts, steps and floats.
  void alter_words(std::string& bytes) {
    static constexpr std::array<std::uint32_t, 8> kOdd{0, 1, 7, 8, INT32_MAX, 0x80000000, 0x7fc00000, UINT32_MAX};
    if (bytes.size() < sizeof(std::uint32_t)) return alter_bytes(bytes);
    auto const at = below(bytes.size() / sizeof(std::uint32_t)) * sizeof(std::uint32_t);
    auto word = kOdd[below(kOdd.size())];
    if (below(2) == 0) std::memcpy(&word, &bytes[below(bytes.size() / sizeof(word)) * sizeof(word)], sizeof(word));
    std::memcpy(&bytes[at], &word, sizeof(word));
  }

  void alter_bytes(std::string& bytes) {
    auto const at = below(bytes.size() + 1), count = 1 + below(16);
    switch (below(5)) {
      case 0:
        bytes.erase(at, count);
        break;
      case 1:
        if (bytes.size() < PackageFiles::kMostBytes) bytes.insert(at, count, static_cast<char>(below(256)));
        break;
      case 2:
        bytes.resize(at);
        break;
      default:
        if (at < bytes.size()) bytes[at] = static_cast<char>(bytes[at] ^ (1U << below(8)));
    }
  }

  std::mt19937& random_;
};

/// Makes checksums those of the contents, as far as the repairs say. JSON of another form stays as it is.
inline PackageFiles repaired(PackageFiles files) {
  auto &manifest = files.contents[PackageFiles::kManifest], &tables = files.contents[PackageFiles::kTables];
  auto const &rows = files.contents[PackageFiles::kRows], &dense = files.contents[PackageFiles::kDense];
  auto const repair = [](std::string& text, auto const& change) {
    auto values = json::parse(text, nullptr, false);
    if (values.is_discarded()) return;
    try {
      change(values);
    } catch (json::exception const&) {  // The rest stays as it is.
    }
    text = values.dump();
  };
  auto const seal = [](std::string& text) {
    auto const sum = crc32_of(text);
    text = json{{"format", 1}, {"crc32", sum}, {"manifest", text}}.dump(-1, ' ', false, json::error_handler_t::replace);
  };
  if (files.repairs_with(PackageFiles::kSealManifest)) {
    if (files.repairs_with(PackageFiles::kSumParts)) {
      repair(manifest, [&](json& values) {
        for (auto& part : values.at("parts")) {
          if (!part.is_object()) continue;
          part["num_bytes"] = dense.size();
          part["crc32"] = crc32_of(dense);
        }
      });
    }
    seal(manifest);
  }
  if (files.repairs_with(PackageFiles::kSealTables)) {
    if (files.repairs_with(PackageFiles::kSumBlocks)) {
      repair(tables, [&](json& values) {
        for (auto& block : values.at("blocks")) {
          auto const offset = unsigned_of(block.at("offset"));
          auto const num_bytes = unsigned_of(block.at("num_bytes"));
          if (offset <= rows.size()) block["crc32"] = crc32_of(std::string_view(rows).substr(offset, num_bytes));
        }
      });
    }
    seal(tables);
  }
  return files;
}

/// Writes a package, with the repairs.
inline void write_package(PackageFiles const& files, std::filesystem::path const& folder) {
  static constexpr std::array<char const*, PackageFiles::kNumFiles> kNames{"manifest.json", "tables/manifest.json",
                                                                           "tables/rows", "dense.pt2"};
  auto const all = repaired(files);
  for (std::size_t file = 0; file < kNames.size(); ++file) {
    std::filesystem::remove(folder / kNames[file]);  // Some file systems wait for the disk where a file is emptied.
    std::ofstream(folder / kNames[file], std::ios::binary) << all.contents[file];
  }
}

/// Elements of all inputs of the largest bucket. A floating-point number, since a damaged manifest may say anything.
inline double most_input_elements(Manifest const& manifest) {
  double most = 0;
  for (auto const& part : manifest.parts) {
    auto const size_of = [&](Axis axis) { return static_cast<double>(part.bucket.of(axis)); };
    double sum = 0;
    for (auto const& feature : manifest.features) {
      bool const is_pooled = feature.pooling != embedding::Pooling::kNone;
      auto const rows = is_pooled ? size_of(feature.axis) : static_cast<double>(part.bucket.tokens);
      sum += rows * static_cast<double>(manifest.tables[feature.table].dim);
    }
    for (auto const& dense : manifest.dense_features) sum += size_of(dense.axis) * static_cast<double>(dense.width);
    sum += static_cast<double>(part.bucket.users) * static_cast<double>(manifest.sequences.size() + 1);
    most = std::max(most, sum + static_cast<double>(part.bucket.items + part.bucket.tokens));
  }
  return most;
}

/// Reads a package as a server does, and serves a request for one item. A package that is refused must be refused by a
/// PackageError that names a file of the folder; any other exception leaves this function.
/// @returns why it is refused; empty if it can be served
inline std::string serve_package(std::filesystem::path const& folder) {
  constexpr std::size_t kMostElements = std::size_t{1} << 22;
  try {
    auto const manifest = read_package(folder);
    for (int const num_ranks : {2, 1}) {
      for (int rank = 0; rank < num_ranks; ++rank) {
        auto tables = read_tables(manifest, folder, rank, num_ranks, nullptr);
        if (num_ranks > 1) continue;
        // A manifest may ask for buckets that fill the memory of a server; this process has less.
        if (most_input_elements(manifest) > kMostElements) return "";
        TrialService service(manifest, std::move(tables));
        auto const request = smallest_request(manifest);
        try {
          auto const view = request.view();
          static_cast<void>(service.accept(view));
          static_cast<void>(service.answer({&view, 1}));
        } catch (RequestError const&) {  // The model may need longer lists, or have a smaller limit.
        }
      }
    }
  } catch (PackageError const& error) {
    std::string const text = error.what();
    require(text.find(folder.string() + "/") != std::string::npos, "an error names a file: " + text);
    return text;
  }
  return "";
}

}  // namespace headway::serving
