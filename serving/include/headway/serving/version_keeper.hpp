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

  /// Loads the package.
  /// @param package folder or symbolic link; a change of what it has, or points to, is a new version
  /// @param poll_interval time between two looks at it
  /// @throws PackageError
  VersionKeeper(std::filesystem::path package, Load load,
                std::chrono::milliseconds poll_interval = std::chrono::milliseconds(500));

  [[nodiscard]] LoadedVersion const& current() const { return current_; }

  /// Lets all ranks of a new group have the version of rank 0 as current(). All ranks call it before they serve.
  /// @throws PackageError if a rank cannot load it; base::OperationError if a rank is lost
  void agree(comm::Group& group);
  /// Changes the version of all ranks whenever the package of rank 0 changes, until `stop` is requested or a rank is
  /// lost. A version that a rank cannot load is refused, in the log, and the present one goes on. All ranks call it.
  /// @param group null: this rank is alone
  void run(Engine& engine, comm::Group* group, std::stop_token const& stop);

 private:
  class Ranks;

  void lead(Engine& engine, Ranks& ranks, std::stop_token const& stop);
  void follow(Engine& engine, Ranks& ranks);
  /// Loads a version, and checks that requests for the present one fit it. @returns why not; empty if it is loaded
  [[nodiscard]] std::string prepare(std::filesystem::path const& folder, std::uint64_t number);
  /// Adds the prepared version to the engine. @returns why not; empty if it is there
  [[nodiscard]] std::string add_next(Engine& engine);
  /// Agrees on the first batch of a version. @returns why not; empty if all ranks have planned it
  [[nodiscard]] static std::string plan(Engine& engine, Ranks& ranks, std::uint64_t number);
  void change(Engine& engine, Ranks& ranks);

  std::filesystem::path package_;
  Load load_;
  std::chrono::milliseconds poll_interval_;
  LoadedVersion current_, next_;  ///< `next_` has no model if none is prepared.
  std::uint64_t refused_ = 0;     ///< Number of the version that was refused last.
};

}  // namespace headway::serving
