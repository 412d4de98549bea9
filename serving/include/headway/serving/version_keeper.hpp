// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/comm/group.hpp"
#include "headway/embedding/pairwise_lookup.hpp"
#include "headway/serving/engine.hpp"
#include "headway/serving/served_model.hpp"

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

namespace headway::serving {

/// A version of a model with the rows of this rank.
struct LoadedVersion {
  std::filesystem::path folder;  ///< Without symbolic links.
  std::shared_ptr<ServedModel const> model;
  std::vector<embedding::ReadTable> tables;

  [[nodiscard]] std::uint64_t number() const { return model->manifest().number; }
};

/// Keeps the ranks of a server on one version of the model, and changes it while they serve. version_keeper.cpp
/// explains how they agree. One thread uses it.
class VersionKeeper {
 public:
  /// Loads the package of a folder. @throws PackageError that names what is wrong
  using Load = std::function<LoadedVersion(std::filesystem::path const& folder)>;

  /// Loads the package, or the folder that was served before, if the note of it names the same package.
  /// @param package folder or symbolic link; a change of what it has, or points to, is a new version
  /// @param note file of all ranks in which rank 0 keeps the folder that is served. A rank that starts again while the
  ///   package has a version that was refused finds the good one by it. Empty: none
  /// @param poll_interval time between two looks at the package
  /// @throws PackageError
  VersionKeeper(std::filesystem::path package, Load load, std::filesystem::path note = {},
                std::chrono::milliseconds poll_interval = std::chrono::milliseconds(500));

  [[nodiscard]] LoadedVersion const& current() const { return current_; }

  /// Lets all ranks of a new group have the version of rank 0 as current(). All ranks call it before they serve.
  /// @throws PackageError if a rank cannot load it; base::OperationError if a rank is lost
  void agree(comm::Group& group);
  /// Changes the version of all ranks whenever the package of rank 0 changes, until `stop` is requested or a rank is
  /// lost. A version that a rank cannot load is refused, in the log, and the present one goes on. It is tried again
  /// from another folder at once, and from the same one after a minute, then two, four and so on. All ranks call it.
  /// @param group null: this rank is alone
  void run(Engine& engine, comm::Group* group, std::stop_token const& stop);

 private:
  class Ranks;
  /// A version that is not tried for a while.
  struct Refused {
    std::uint64_t number = 0;
    std::filesystem::path folder{};
    std::chrono::minutes pause{0};
    std::chrono::steady_clock::time_point until{};
  };

  void lead(Engine& engine, Ranks& ranks, std::stop_token const& stop);
  void follow(Engine& engine, Ranks& ranks);
  /// Loads a version, and checks that requests for the present one fit it. @returns why not; empty if it is loaded
  [[nodiscard]] std::string prepare(std::filesystem::path const& folder, std::uint64_t number);
  /// Adds the prepared version to the engine. @returns why not; empty if it is there
  [[nodiscard]] std::string add_next(Engine& engine);
  [[nodiscard]] bool is_refused(std::uint64_t number, std::filesystem::path const& folder) const;
  void refuse(std::uint64_t number, std::filesystem::path const& folder);
  /// Lets all ranks load `next_`. @returns why not; empty if all have it
  [[nodiscard]] std::string offer(Ranks& ranks);
  /// Agrees on the first batch of a version. @returns why not; empty if all ranks have planned it
  [[nodiscard]] static std::string plan(Engine& engine, Ranks& ranks, std::uint64_t number);
  void change(Engine& engine, Ranks& ranks);
  [[nodiscard]] LoadedVersion load_first() const;
  /// Notes that `current_` is served.
  void write_note() const;

  std::filesystem::path package_, note_;
  Load load_;
  std::chrono::milliseconds poll_interval_;
  LoadedVersion current_, next_;  ///< `next_` has no model if none is prepared.
  Refused refused_;               ///< The version that was refused last.
};

}  // namespace headway::serving
