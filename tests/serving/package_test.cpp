// SPDX-License-Identifier: Apache-2.0
#include "headway/serving/package.hpp"

#include "headway/base/crc32.hpp"
#include "headway/embedding/record_file.hpp"
#include "headway/embedding/routing.hpp"
#include "headway/serving/tables.hpp"
#include "temporary_directory.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>
#include <functional>

namespace headway::serving {
namespace {

using nlohmann::json;

/// Writes a package of two tables, one of them with rows of ids 0 to 99, into a temporary folder.
class Package : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(folder_ / "tables");
    write("dense.pt2", "machine code");
    auto const table = embedding::make_cpu_table({.dim = 2});
    for (std::uint64_t id = 0; id < 100; ++id) {
      std::vector<float> const row{static_cast<float>(id), 0.5F};
      embedding::KeyStatus status;
      table->insert_or_assign({.ids = {&id, 1}, .table = crc32_of("items")}, row, {&status, 1});
    }
    embedding::RecordFileWriter writer(folder_ / "tables" / "rows", 16);
    writer.write(*table, false, 0, embedding::kNumVirtualBuckets);
    json blocks = json::array();
    for (auto const& block : writer.finish()) {
      blocks.push_back({{"file", "rows"},
                        {"offset", block.offset},
                        {"num_bytes", block.num_bytes},
                        {"crc32", block.crc32},
                        {"group", 0},
                        {"pending", false},
                        {"num_keys", block.num_keys},
                        {"first_bucket", block.first_bucket},
                        {"end_bucket", block.end_bucket}});
    }
    seal("tables/manifest.json",
         {{"step", 7},
          {"routing_version", embedding::kRoutingVersion},
          {"blocks", blocks},
          {"groups", {{{"tables", {"items"}}, {"dim", 2}, {"state_size", 0}, {"optimizer", "NoOptimizer"}}}}});
    values_ = {
        {"version", "2026-11-28"},
        {"torch_version", "2.14.0"},
        {"seed", 5},
        {"tables",
         {{{"name", "items"},
           {"dim", 2},
           {"time_to_live", 0},
           {"unknown", "zeros"},
           {"initializer", {{"kind", "normal"}, {"mean", 0.0}, {"std", 0.01}}}},
          {{"name", "users"},
           {"dim", 4},
           {"time_to_live", 3},
           {"unknown", "initial"},
           {"initializer", {{"kind", "uniform"}, {"low", -1.0}, {"high", 1.0}}}}}},
        {"features",
         {{{"name", "history"},
           {"table", "items"},
           {"axis", "user"},
           {"pooling", nullptr},
           {"sequence", "events"},
           {"is_single", false}},
          {{"name", "item"},
           {"table", "items"},
           {"axis", "item"},
           {"pooling", "mean"},
           {"sequence", nullptr},
           {"is_single", true}}}},
        {"dense_features", {{{"name", "price"}, {"width", 3}, {"axis", "item"}}}},
        {"longest", 40},
        {"outputs", {"click"}},
        {"parts",
         {{{"bucket", {{"items", 16}, {"users", 2}, {"tokens", 32}}},
           {"file", "dense.pt2"},
           {"num_bytes", 12},
           {"crc32", crc32_of("machine code")}}}},
    };
    seal("manifest.json", values_);
  }

  static std::uint32_t crc32_of(std::string const& text) { return base::crc32(std::as_bytes(std::span(text))); }
  void write(std::string const& name, std::string const& text) const { std::ofstream(folder_ / name) << text; }
  void seal(std::string const& name, json const& values) const {
    auto const body = values.dump();
    write(name, json{{"format", 1}, {"crc32", crc32_of(body)}, {"manifest", body}}.dump());
  }
  /// The error that reading gives after a change of the manifest.
  std::string error_after(std::function<void(json&)> const& change) {
    auto changed = values_;
    change(changed);
    seal("manifest.json", changed);
    return error();
  }
  [[nodiscard]] std::string error() const {
    try {
      static_cast<void>(read_package(folder_));
    } catch (PackageError const& error) {
      return error.what();
    }
    return "";
  }

  TemporaryDirectory directory_;
  std::filesystem::path const& folder_ = directory_.path();
  json values_;
};

TEST_F(Package, says_what_was_written) {
  auto const manifest = read_package(folder_);
  EXPECT_EQ(manifest.version, "2026-11-28");
  ASSERT_EQ(manifest.tables.size(), 2);
  EXPECT_TRUE(manifest.tables[0].reads_unknown_as_zeros);
  EXPECT_EQ(manifest.tables[0].id, crc32_of("items"));
  EXPECT_EQ(manifest.tables[1].time_to_live, 3);
  EXPECT_EQ(manifest.tables[1].initializer.values().seed, 5);
  ASSERT_EQ(manifest.features.size(), 2);
  EXPECT_EQ(manifest.features[0].pooling, embedding::Pooling::kNone);
  EXPECT_EQ(manifest.sequences, std::vector<std::string>{"events"});
  EXPECT_EQ(manifest.features[1].pooling, embedding::Pooling::kMean);
  EXPECT_TRUE(manifest.features[1].is_single);
  EXPECT_EQ(manifest.longest, 40);
  EXPECT_TRUE(manifest.has_users());
  EXPECT_EQ(manifest.parts.at(0).bucket, (Sizes{.items = 16, .users = 2, .tokens = 32}));
  EXPECT_EQ(manifest.saved.step, 7);
}

TEST_F(Package, its_rows_are_shared_out_among_ranks) {
  auto const manifest = read_package(folder_);
  std::size_t num_rows = 0;
  for (int rank = 0; rank < 3; ++rank) {
    auto const tables = read_tables(manifest, folder_, rank, 3, nullptr);
    ASSERT_EQ(tables.size(), 2);
    auto const size = tables[0].rows->size().rows;
    EXPECT_GT(size, 10);
    num_rows += size;
  }
  EXPECT_EQ(num_rows, 100);
  auto const all = read_tables(manifest, folder_, 0, 1, nullptr);
  std::uint64_t const id = 42;
  embedding::RowId row;
  std::vector<float> embedding(2);
  embedding::Keys const keys{.ids = {&id, 1}, .table = crc32_of("items")};
  all[0].rows->find(keys, {&row, 1}, {});
  all[0].rows->gather(keys, {&row, 1}, embedding);
  EXPECT_EQ(embedding, (std::vector<float>{42, 0.5F}));
}

TEST_F(Package, damage_is_named) {
  write("dense.pt2", "machine c0de");
  EXPECT_EQ(error(), (folder_ / "dense.pt2").string() + " was truncated or altered");
  write("dense.pt2", "machine");
  EXPECT_EQ(error(), (folder_ / "dense.pt2").string() + " was truncated or altered");
  std::filesystem::remove(folder_ / "dense.pt2");
  EXPECT_EQ(error(), (folder_ / "dense.pt2").string() + " cannot be read");
}

TEST_F(Package, an_altered_manifest_is_refused) {
  std::ifstream file(folder_ / "manifest.json");
  std::string text{std::istreambuf_iterator<char>(file), {}};
  text.replace(text.find("click"), 5, "clock");
  write("manifest.json", text);
  EXPECT_NE(error().find("manifest.json: "), std::string::npos) << error();
  EXPECT_NE(error().find("altered"), std::string::npos) << error();
  write("manifest.json", text.substr(0, 100));
  EXPECT_NE(error().find("manifest.json: "), std::string::npos) << error();
  write("manifest.json", "{}");
  EXPECT_NE(error().find("manifest.json: "), std::string::npos) << error();
}

TEST_F(Package, a_manifest_that_says_the_impossible_is_refused) {
  auto const expect = [&](std::string const& wanted, std::function<void(json&)> const& change) {
    auto const error = error_after(change);
    EXPECT_NE(error.find(wanted), std::string::npos) << error;
  };
  expect("there is no table nowhere", [](json& each) { each["features"][0]["table"] = "nowhere"; });
  expect("\"max\" is not known", [](json& each) { each["features"][1]["pooling"] = "max"; });
  expect("\"world\" is not known", [](json& each) { each["dense_features"][0]["axis"] = "world"; });
  expect("no pooling and no sequence", [](json& each) { each["features"][0]["sequence"] = nullptr; });
  expect("no bucket", [](json& each) { each["parts"] = json::array(); });
  expect("\"xavier\" is not known", [](json& each) { each["tables"][0]["initializer"]["kind"] = "xavier"; });
  expect("torch_version", [](json& each) { each.erase("torch_version"); });
  expect("device tpu is not known", [](json& each) { each["device"] = "tpu"; });
  expect("leaves the folder", [](json& each) { each["parts"][0]["file"] = "../dense.pt2"; });
  expect("items is there twice", [](json& each) { each["tables"][1]["name"] = "items"; });
  expect("history is there twice", [](json& each) { each["features"][1]["name"] = "history"; });
}

TEST_F(Package, altered_rows_are_refused_by_name) {
  auto const manifest = read_package(folder_);
  std::fstream file(folder_ / "tables" / "rows", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(200);
  file.put('x').put('y').put('z');
  file.close();
  EXPECT_THROW(static_cast<void>(read_tables(manifest, folder_, 0, 1, nullptr)), PackageError);
}

TEST_F(Package, tables_of_equal_settings_share_storage) {
  auto const before = merge_tables(read_package(folder_));
  EXPECT_EQ(before.merged_of, (std::vector<std::size_t>{0, 1}));
  values_["tables"][1] = values_["tables"][0];
  values_["tables"][1]["name"] = "users";
  seal("manifest.json", values_);
  auto const after = merge_tables(read_package(folder_));
  EXPECT_EQ(after.merged_of, (std::vector<std::size_t>{0, 0}));
  EXPECT_EQ(after.feature_of, (std::vector<std::size_t>{0, 1}));
}

}  // namespace
}  // namespace headway::serving
