// SPDX-License-Identifier: Apache-2.0

// Packages and requests that are damaged: they are refused by a clear error, or served. The fuzzers in tests/fuzz
// search longer; here are a fixed number of their changes, and a test for each fault that they have found.

#include "altered_package.hpp"
#include "temporary_directory.hpp"
#include "trial_models.hpp"
#include "trial_service.hpp"

#include <gtest/gtest.h>

#include <functional>

namespace headway::serving {
namespace {

class DamagedPackage : public testing::Test {
 protected:
  /// Why a package is refused after a change of a manifest; empty if it is served.
  std::string error_after(PackageFiles::File file, std::function<void(json&)> const& change) {
    auto files = valid_;
    auto values = json::parse(files.contents[file]);
    change(values);
    files.contents[file] = values.dump();
    return error_of(files);
  }
  std::string error_of(PackageFiles const& files) {
    write_package(files, folder_.path());
    return serve_package(folder_.path());
  }
  void expect_error(std::string const& wanted, PackageFiles::File file, std::function<void(json&)> const& change) {
    auto const error = error_after(file, change);
    EXPECT_NE(error.find(wanted), std::string::npos) << error;
  }
  void expect_error_in_manifest(std::string const& wanted, std::function<void(json&)> const& change) {
    expect_error(wanted, PackageFiles::kManifest, change);
    expect_error("/manifest.json: ", PackageFiles::kManifest, change);
  }
  void expect_error_in_tables(std::string const& wanted, std::function<void(json&)> const& change) {
    expect_error(wanted, PackageFiles::kTables, change);
    expect_error("/tables/manifest.json: ", PackageFiles::kTables, change);
  }

  TemporaryDirectory folder_;
  PackageFiles valid_ = valid_package(folder_.path());
};

TEST_F(DamagedPackage, without_damage_it_is_served) {
  EXPECT_EQ(error_of(valid_), "");
  EXPECT_EQ(error_of(decode(encode(valid_))), "");
}

TEST_F(DamagedPackage, random_changes_are_refused_by_the_name_of_a_file_or_served) {
  std::mt19937 random(1);
  PackageChanges changes(random);
  std::size_t num_refused = 0;
  constexpr std::size_t kPackages = 600;
  for (std::size_t i = 0; i < kPackages; ++i) {
    auto files = valid_;
    for (auto count = 1 + random() % 3; count > 0; --count) changes.alter(files);
    SCOPED_TRACE("package " + std::to_string(i));
    std::string error;
    EXPECT_NO_THROW(error = error_of(files));
    num_refused += error.empty() ? 0 : 1;
  }
  EXPECT_GT(num_refused, kPackages / 2);
  EXPECT_LT(num_refused, kPackages);
}

TEST_F(DamagedPackage, any_changed_byte_is_refused_without_a_repair_of_checksums) {
  write_package(valid_, folder_.path());
  for (auto const* const name : {"manifest.json", "tables/manifest.json", "tables/rows", "dense.pt2"}) {
    auto const path = folder_.path() / name;
    std::ifstream file(path, std::ios::binary);
    std::string const content{std::istreambuf_iterator<char>(file), {}};
    std::mt19937 random(2);
    for (int i = 0; i < 40; ++i) {
      auto altered = content;
      auto& byte = altered[random() % altered.size()];
      byte = static_cast<char>(byte ^ (1U << random() % 7));
      std::ofstream(path, std::ios::binary) << altered;
      EXPECT_NE(serve_package(folder_.path()), "") << name << ", change " << i;
    }
    std::ofstream(path, std::ios::binary) << content;
  }
  EXPECT_EQ(serve_package(folder_.path()), "");
}

TEST_F(DamagedPackage, a_number_that_is_not_whole_or_out_of_its_range_is_refused) {
  for (json const& number : {json(-1), json(0.5), json(1e300), json(true), json(nullptr), json("7")}) {
    expect_error_in_manifest("\"seed\" must be a whole number", [&](json& each) { each["seed"] = number; });
    expect_error_in_manifest("\"dim\"", [&](json& each) { each["tables"][0]["dim"] = number; });
    expect_error_in_manifest("\"time_to_live\"", [&](json& each) { each["tables"][0]["time_to_live"] = number; });
    expect_error_in_manifest("\"width\"", [&](json& each) { each["dense_features"][0]["width"] = number; });
    expect_error_in_manifest("\"tokens\"", [&](json& each) { each["parts"][0]["bucket"]["tokens"] = number; });
    expect_error_in_tables("\"step\"", [&](json& each) { each["step"] = number; });
    expect_error_in_tables("\"group\"", [&](json& each) { each["blocks"][0]["group"] = number; });
    expect_error_in_tables("\"state_size\"", [&](json& each) { each["groups"][0]["state_size"] = number; });
  }
  expect_error_in_manifest("from 0 to 4294967295", [](json& each) { each["tables"][0]["time_to_live"] = 1ULL << 32; });
}

TEST_F(DamagedPackage, sizes_that_no_memory_holds_are_refused) {
  expect_error_in_manifest("\"dim\"", [](json& each) { each["tables"][0]["dim"] = (1 << 20) + 1; });
  expect_error_in_manifest("\"width\"", [](json& each) { each["dense_features"][0]["width"] = INT64_MAX; });
  expect_error_in_manifest("\"items\"", [](json& each) { each["parts"][0]["bucket"]["items"] = UINT64_MAX; });
  expect_error_in_manifest("more than 4294967296 elements", [](json& each) {
    each["parts"][0]["bucket"]["items"] = 1 << 20;
    each["dense_features"][0]["width"] = 1 << 13;
  });
}

TEST_F(DamagedPackage, a_bucket_without_items_and_features_without_columns_are_refused) {
  expect_error_in_manifest("\"items\"", [](json& each) { each["parts"][1]["bucket"]["items"] = 0; });
  expect_error_in_manifest("\"width\"", [](json& each) { each["dense_features"][0]["width"] = 0; });
  expect_error_in_manifest("\"dim\"", [](json& each) { each["tables"][2]["dim"] = 0; });
}

TEST_F(DamagedPackage, a_sequence_of_items_is_refused) {
  expect_error_in_manifest("sequences belong to users", [](json& each) { each["features"][0]["axis"] = "item"; });
}

TEST_F(DamagedPackage, tables_whose_names_give_the_same_id_are_refused) {
  ASSERT_EQ(crc32_of("plumless"), crc32_of("buckeroo"));
  expect_error_in_manifest("tables plumless and buckeroo have the same id", [](json& each) {
    each["tables"].push_back(each["tables"][2]);
    each["tables"].push_back(each["tables"][2]);
    each["tables"][3]["name"] = "plumless";
    each["tables"][4]["name"] = "buckeroo";
  });
}

TEST_F(DamagedPackage, outputs_that_are_missing_or_repeated_are_refused) {
  expect_error_in_manifest("it has no output", [](json& each) { each["outputs"] = json::array(); });
  expect_error_in_manifest("click is there twice", [](json& each) { each["outputs"] = {"click", "buy", "click"}; });
}

TEST_F(DamagedPackage, a_folder_in_the_place_of_a_file_is_refused) {
  for (auto const* const name : {".", "..", "tables"}) {
    expect_error("cannot be read", PackageFiles::kManifest, [&](json& each) { each["parts"][0]["file"] = name; });
  }
  expect_error("Is a directory", PackageFiles::kTables, [](json& each) { each["blocks"][0]["file"] = "."; });
  expect_error_in_manifest("leaves the folder",
                           [](json& each) { each["parts"][0]["file"] = std::string("dense.pt2\0x", 11); });
}

TEST_F(DamagedPackage, a_block_that_all_ranks_would_leave_out_is_refused) {
  expect_error_in_tables("no virtual buckets from 16384", [](json& each) {
    each["blocks"][0]["first_bucket"] = 16'384;
    each["blocks"][0]["end_bucket"] = 16'385;
  });
  expect_error_in_tables("no virtual buckets", [](json& each) { each["blocks"][0]["end_bucket"] = 0; });
}

TEST_F(DamagedPackage, rows_of_another_dim_than_their_table_are_refused) {
  expect_error("records have embeddings of dim 2, and not 4", PackageFiles::kManifest,
               [](json& each) { each["tables"][0]["dim"] = each["tables"][1]["dim"] = 4; });
}

/// Random requests for a model, of which most are damaged.
class RequestChanges {
 public:
  explicit RequestChanges(std::mt19937& random) : random_(random) {}

  void alter(OwnedRequest& request) {
    auto const feature = below(request.ids.size());
    switch (below(6)) {
      case 0:
        return alter(request.ids[feature]);
      case 1:
      case 2:
        return alter(request.lengths[feature]);
      case 3:
        if (!request.dense.empty()) alter(request.dense[below(request.dense.size())]);
        return;
      case 4:
        return alter(request.items);
      default:  // A change that fits: the list of one user or item has one more id.
        if (request.lengths[feature].empty() || request.lengths[feature].back() == INT32_MAX) return;
        ++request.lengths[feature].back();
        request.ids[feature].push_back(static_cast<std::int64_t>(below(60)));
    }
  }

 private:
  [[nodiscard]] std::size_t below(std::size_t limit) { return random_() % limit; }
  template <class T>
  void alter(std::vector<T>& values) {
    static constexpr std::array<std::int64_t, 7> kOdd{0, 1, 2, -1, INT32_MAX, INT32_MIN, INT64_MAX};
    auto const number = static_cast<T>(kOdd[below(kOdd.size())]);
    if (values.empty() || below(3) == 0) {
      values.push_back(number);
    } else if (below(3) == 0) {
      values.pop_back();
    } else {
      values[below(values.size())] = number;
    }
  }

  std::mt19937& random_;
};

TEST(DamagedRequest, random_changes_are_refused_or_answered) {
  for (auto const& manifest : {model_with_users(), model_of_items()}) {
    TrialService service(manifest, small_tables(manifest, 0, 1));
    std::mt19937 random(3);
    RequestChanges changes(random);
    std::size_t num_answered = 0;
    constexpr std::size_t kRequests = 4000;
    for (std::size_t i = 0; i < kRequests; ++i) {
      auto request = smallest_request(manifest);
      for (auto count = random() % 4; count > 0; --count) changes.alter(request);
      auto const view = request.view();
      try {
        static_cast<void>(service.accept(view));
      } catch (RequestError const&) {
        continue;
      }
      EXPECT_EQ(service.answer({&view, 1}).front().outputs.size(), manifest.outputs.size());
      ++num_answered;
    }
    EXPECT_GT(num_answered, kRequests / 4);
    EXPECT_LT(num_answered, kRequests);
  }
}

}  // namespace
}  // namespace headway::serving
