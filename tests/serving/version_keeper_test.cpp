// SPDX-License-Identifier: Apache-2.0
#include "headway/serving/version_keeper.hpp"

#include "engine_fixture.hpp"
#include "temporary_directory.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

namespace headway::serving {
namespace {

/// A folder whose manifests are a text, and models that belong to it. The text is the factor of all embeddings.
class Versions : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(folder_ / "tables");
    std::ofstream(folder_ / "tables" / "manifest.json") << "rows";
    write("1");
  }

  /// Replaces the manifest at once, as a new package does.
  void write(std::string const& text) const {
    std::ofstream(folder_ / "new") << text;
    std::filesystem::rename(folder_ / "new", folder_ / "manifest.json");
  }
  static Manifest manifest_of(std::string const& text, std::uint64_t number) {
    auto manifest = small_manifest();
    manifest.version = text;
    manifest.number = number;
    return manifest;
  }
  /// Loads what the folder has. A text that is no number cannot be loaded by rank 1. Version 3 has small buckets.
  [[nodiscard]] VersionKeeper::Load load(int rank, int size) const {
    return [=, this](std::filesystem::path const& folder) {
      std::string text;
      std::ifstream(folder / "manifest.json") >> text;
      auto manifest = manifest_of(text, package_number(folder));
      if (text == "3") manifest.parts = small_manifest({{.items = 8, .users = 2, .tokens = 8}}).parts;
      if (text == "other") manifest.outputs = {"something", "else"};
      if (text == "bad" && rank == 1) throw PackageError("the file is bad");
      if (text == "2") begins_to_load_[static_cast<std::size_t>(rank)] = true;
      while (text == "2" && rank == 2 && !may_load_) std::this_thread::sleep_for(1ms);
      float const scale = text == "bad" || text == "other" ? 0 : std::stof(text);
      auto tables = small_tables(manifest, rank, size, scale);
      return LoadedVersion{.folder = folder,
                           .model = std::make_shared<ServedModel>(
                               manifest, std::make_shared<AnyModel>(manifest, text == "1" ? first_ended_on_ : nullptr)),
                           .tables = std::move(tables)};
    };
  }
  /// Has as many outputs as the manifest says.
  class AnyModel final : public SumModel {
   public:
    explicit AnyModel(Manifest const& manifest, std::shared_ptr<std::atomic<std::thread::id>> ended_on = nullptr)
        : SumModel(manifest), num_outputs_(manifest.outputs.size()), ended_on_(std::move(ended_on)) {}
    AnyModel(AnyModel const&) = delete;
    AnyModel& operator=(AnyModel const&) = delete;
    ~AnyModel() override {
      if (ended_on_ != nullptr) *ended_on_ = std::this_thread::get_id();
    }
    [[nodiscard]] std::vector<OutputRows> run(std::size_t part, std::span<InputTensor const> inputs) override {
      return std::vector<OutputRows>(num_outputs_, SumModel::run(part, inputs).at(0));
    }

   private:
    std::size_t num_outputs_;
    std::shared_ptr<std::atomic<std::thread::id>> ended_on_;
  };

  /// Scores of a request with the embeddings of a version, computed by one rank.
  [[nodiscard]] static std::vector<float> scores(std::string const& text, std::shared_ptr<Arrays> const& arrays) {
    auto const manifest = small_manifest();
    auto fetcher = make_pairwise_fetcher(nullptr, nullptr);
    fetcher->add_version(manifest.number, small_tables(manifest, 0, 1, std::stof(text)));
    Engine engine(std::make_shared<ServedModel>(manifest, std::make_shared<SumModel>(manifest)), std::move(fetcher),
                  {});
    return get(ask(engine, arrays)).outputs.at(0).values;
  }

  /// Serves on a rank while `body` runs.
  void serve_versions(std::shared_ptr<comm::Group> const& group, std::function<void(Engine&)> const& body) const {
    int const rank = group == nullptr ? 0 : group->rank(), size = group == nullptr ? 1 : group->size();
    VersionKeeper versions(folder_, load(rank, size), {}, 5ms);
    if (group != nullptr) versions.agree(*group);
    auto fetcher = make_fetcher(GetParam(), group);
    fetcher->add_version(versions.current().number(), versions.current().tables);
    Engine engine(versions.current().model, std::move(fetcher), {.batch_delay = 100us, .max_in_flight = kMaxLag + 1});
    std::jthread keeper([&](std::stop_token const& stop) { versions.run(engine, group.get(), stop); });
    body(engine);
    if (group != nullptr) static_cast<void>(group->wait(*group->barrier()));
    keeper.request_stop();
    keeper.join();
    engine.drain();
  }

  /// Asks until a reply is of a version.
  static void ask_until(Engine& engine, std::string const& version, std::shared_ptr<Arrays> const& arrays) {
    auto const ends = Clock::now() + 30s;
    while (Clock::now() < ends) {
      auto const reply = get(ask(engine, arrays));
      ASSERT_EQ(reply.error, "");
      if (reply.version == version) return;
    }
    FAIL() << "version " << version << " did not come";
  }

  /// Serves on 3 ranks. While the last one loads version 2, rank `stopping` has to stop. Then all serve once more.
  /// @returns the version of rank 0 at the end
  [[nodiscard]] std::string stop_while_rank_2_loads(int stopping) {
    may_load_ = false;
    std::string version;
    run_ranks(
        3,
        [&](std::shared_ptr<comm::Group> const& group) {
          std::mt19937 random(5);
          auto const arrays = random_arrays(random, 8);
          VersionKeeper versions(folder_, load(group->rank(), 3), {}, 5ms);
          versions.agree(*group);
          auto fetcher = make_fetcher(GetParam(), group);
          fetcher->add_version(versions.current().number(), versions.current().tables);
          Engine engine(versions.current().model, std::move(fetcher), {.max_in_flight = kMaxLag + 1});
          std::jthread keeper([&](std::stop_token const& stop) { versions.run(engine, group.get(), stop); });
          static_cast<void>(group->wait(*group->barrier()));
          if (group->rank() == 0) write("2");
          while (!begins_to_load_[static_cast<std::size_t>(group->rank())]) std::this_thread::sleep_for(1ms);
          static_cast<void>(group->wait(*group->barrier()));
          if (group->rank() == stopping) {
            keeper.request_stop();
            if (stopping == 0) {
              keeper.join();
            } else {
              std::this_thread::sleep_for(300ms);  // Its wait for the outcome goes on.
            }
            may_load_ = true;
          }
          auto const ends = Clock::now() + (stopping == 0 ? 200ms : 20s);
          do {
            auto const reply = get(ask(engine, arrays));
            EXPECT_EQ(reply.error, "");
            EXPECT_EQ(reply.outputs.at(0).values, scores(reply.version, arrays));
          } while (engine.model()->manifest().version != "2" && Clock::now() < ends);
          static_cast<void>(group->wait(*group->barrier()));
          keeper.request_stop();
          if (keeper.joinable()) keeper.join();
          if (group->rank() == 0) version = engine.model()->manifest().version;
          engine.drain();
        },
        kMaxLag);
    return version;
  }

  static constexpr int kMaxLag = 2;
  TemporaryDirectory directory_;
  std::filesystem::path const& folder_ = directory_.path();
  mutable std::array<std::atomic<bool>, 3> begins_to_load_{};      ///< Version 2, by rank.
  std::atomic<bool> may_load_ = true;                              ///< Rank 2 waits for it when it loads version 2.
  std::shared_ptr<std::atomic<std::thread::id>> first_ended_on_ =  ///< Thread that has ended the model of version 1.
      std::make_shared<std::atomic<std::thread::id>>();
};
INSTANTIATE_TEST_SUITE_P(Ways, Versions, testing::Values(Kind::kPairwise, Kind::kRing),
                         [](auto const& each) { return each.param == Kind::kRing ? "ring" : "pairwise"; });

TEST_P(Versions, each_reply_has_the_scores_of_its_version_while_versions_change) {
  constexpr int kSize = 3;
  std::vector<std::string> const texts{"1", "2", "3", "1.5", "1"};
  std::mt19937 random(1);
  auto const arrays = random_arrays(random, 8);
  std::map<std::string, std::vector<float>> expected;
  for (auto const& text : texts) expected[text] = scores(text, arrays);
  std::atomic<int> num_done = 0;
  run_ranks(
      kSize,
      [&](std::shared_ptr<comm::Group> const& group) {
        serve_versions(group, [&](Engine& engine) {
          std::set<std::string> seen;
          std::jthread const client([&] {
            std::vector<std::future<Reply>> replies;
            while (num_done < kSize) {
              for (int i = 0; i < 8; ++i) replies.push_back(ask(engine, arrays));
              for (auto& each : replies) {
                auto const reply = get(std::move(each));
                ASSERT_EQ(reply.error, "");
                ASSERT_EQ(reply.outputs.at(0).values, expected.at(reply.version)) << "version " << reply.version;
                seen.insert(reply.version);
              }
              replies.clear();
            }
            EXPECT_EQ(seen, (std::set<std::string>{"1", "2", "3", "1.5"}));
          });
          for (auto const& text : texts) {
            if (group->rank() == 0) write(text);
            ask_until(engine, text, arrays);
            static_cast<void>(group->wait(*group->barrier()));
          }
          ++num_done;
        });
      },
      kMaxLag);
}

TEST_P(Versions, ranks_without_requests_change_as_well) {
  run_ranks(
      3,
      [&](std::shared_ptr<comm::Group> const& group) {
        serve_versions(group, [&](Engine& engine) {
          // A change begins only when the one before has ended.
          for (std::string const text : {"2", "3", "4"}) {
            if (group->rank() == 0) write(text);
            auto const ends = Clock::now() + 30s;
            while (engine.model()->manifest().version != text) {
              ASSERT_LT(Clock::now(), ends) << "version " << text << " did not come";
              std::this_thread::sleep_for(1ms);
            }
            static_cast<void>(group->wait(*group->barrier()));
          }
        });
      },
      kMaxLag);
}

TEST_P(Versions, the_thread_that_serves_requests_does_not_unload_the_old_version) {
  std::mt19937 random(6);
  auto const arrays = random_arrays(random, 3);
  serve_versions(nullptr, [&](Engine& engine) {
    std::promise<std::thread::id> serving;
    engine.submit(request_of(arrays), Clock::now() + 20s,
                  [&](Reply&&) { serving.set_value(std::this_thread::get_id()); });
    auto const serves = serving.get_future().get();
    write("2");
    ask_until(engine, "2", arrays);
    auto const ends = Clock::now() + 20s;
    while (first_ended_on_->load() == std::thread::id() && Clock::now() < ends) std::this_thread::sleep_for(1ms);
    EXPECT_NE(first_ended_on_->load(), std::thread::id());
    EXPECT_NE(first_ended_on_->load(), serves);
  });
}

TEST_P(Versions, one_rank_alone_changes_as_well) {
  std::mt19937 random(2);
  auto const arrays = random_arrays(random);
  serve_versions(nullptr, [&](Engine& engine) {
    for (std::string const text : {"2", "3", "2"}) {
      write(text);
      ask_until(engine, text, arrays);
    }
  });
}

TEST_P(Versions, one_that_a_rank_cannot_load_or_of_another_model_is_refused_and_the_old_one_goes_on) {
  std::mt19937 random(3);
  auto const arrays = random_arrays(random);
  run_ranks(
      2,
      [&](std::shared_ptr<comm::Group> const& group) {
        serve_versions(group, [&](Engine& engine) {
          std::uint64_t num_refused = 0;
          for (std::string const text : {"bad", "other"}) {
            if (group->rank() == 0) write(text);
            num_refused += text == "bad" || group->rank() == 0;  // Rank 0 offers no other model.
            auto const ends = Clock::now() + 30s;
            do {
              auto const reply = get(ask(engine, arrays));
              ASSERT_EQ(reply.error, "");
              EXPECT_EQ(reply.version, "1");
            } while (engine.statistics().refused_versions < num_refused && Clock::now() < ends);
            EXPECT_EQ(engine.statistics().refused_versions, num_refused);
            static_cast<void>(group->wait(*group->barrier()));
          }
          if (group->rank() == 0) write("4");
          ask_until(engine, "4", arrays);
        });
      },
      kMaxLag);
}

TEST_P(Versions, a_rank_that_has_to_stop_takes_part_in_a_change_that_has_begun) {
  EXPECT_EQ(stop_while_rank_2_loads(1), "2");
}

TEST_P(Versions, a_change_ends_if_rank_0_has_to_stop) {
  auto const began = Clock::now();
  EXPECT_EQ(stop_while_rank_2_loads(0), "1");
  EXPECT_LT(Clock::now() - began, 8s) << "ranks waited for an outcome that rank 0 did not send";
}

TEST_P(Versions, a_rank_that_starts_again_finds_the_folder_that_is_served) {
  auto const note = folder_ / "note";
  auto const served = folder_ / "served", link = folder_ / "link";
  std::filesystem::create_directories(served);
  std::filesystem::copy(folder_ / "tables", served / "tables");
  std::filesystem::copy(folder_ / "manifest.json", served);
  std::filesystem::create_directory_symlink(served, link);
  auto const load_resolved = [&, load = load(1, 2)](std::filesystem::path const& folder) {
    return load(std::filesystem::canonical(folder));
  };
  run_ranks(2, [&](std::shared_ptr<comm::Group> const& group) {
    VersionKeeper versions(link, load_resolved, note);
    versions.agree(*group);
    static_cast<void>(group->wait(*group->barrier()));
  });
  std::filesystem::remove(link);
  std::filesystem::create_directory_symlink(folder_, link);
  write("bad");
  EXPECT_EQ(VersionKeeper(link, load_resolved, note).current().model->manifest().version, "1");
  EXPECT_THROW(VersionKeeper(link, load_resolved), PackageError);
  EXPECT_THROW(VersionKeeper(folder_, load_resolved, note), PackageError) << "the note is about another package";
  std::filesystem::remove_all(served);
  write("2");
  EXPECT_EQ(VersionKeeper(link, load_resolved, note).current().model->manifest().version, "2");
}

TEST_P(Versions, a_new_group_agrees_on_the_version_of_rank_0) {
  std::atomic<bool> is_loaded = false;
  run_ranks(2, [&](std::shared_ptr<comm::Group> const& group) {
    if (group->rank() == 1) {
      while (!is_loaded) std::this_thread::sleep_for(1ms);
    }
    VersionKeeper versions(folder_, load(group->rank(), 2));
    EXPECT_EQ(versions.current().model->manifest().version, group->rank() == 0 ? "1" : "2");
    if (group->rank() == 0) {
      write("2");
      is_loaded = true;
      static_cast<void>(group->wait(*group->barrier()));
      write("1");
    } else {
      static_cast<void>(group->wait(*group->barrier()));
    }
    static_cast<void>(group->wait(*group->barrier()));
    versions.agree(*group);
    EXPECT_EQ(versions.current().model->manifest().version, "1");
  });
}

TEST_P(Versions, a_rank_that_cannot_load_the_version_of_rank_0_ends_the_agreement) {
  run_ranks(2, [&](std::shared_ptr<comm::Group> const& group) {
    VersionKeeper versions(folder_, load(0, 2));
    static_cast<void>(group->wait(*group->barrier()));
    if (group->rank() == 0) write("bad");
    static_cast<void>(group->wait(*group->barrier()));
    VersionKeeper changed(
        folder_, group->rank() == 0 ? load(0, 2) : [&](std::filesystem::path const& folder) {
          static_cast<void>(folder);
          return versions.current();
        });
    try {
      changed.agree(*group);
      ADD_FAILURE() << "rank " << group->rank() << " has agreed";
    } catch (PackageError const& error) {
      EXPECT_EQ(std::string(error.what()).substr(0, 8), "rank 1: ") << error.what();
    }
  });
}

}  // namespace
}  // namespace headway::serving
