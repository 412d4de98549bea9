// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bootstrap/failure.hpp"
#include "bootstrap/rank_address.hpp"
#include "headway/comm/endpoint.hpp"
#include "headway/comm/store.hpp"

#include <chrono>
#include <optional>
#include <string>

namespace headway::comm {

/// Announcement by which the other ranks find rank 0. Rank 0 makes a new one for each attempt to connect.
struct Announcement {
  std::string drawn_secret;  ///< Random secret of this attempt; empty if the group's options contain one.
  RankAddress rank_address;

  /// Identifies this attempt among all others in the same store and under the same name.
  [[nodiscard]] std::string generation() const;
};

/// A failure, and the time at which its rank posted it.
struct PostedFailure {
  BootstrapFailure failure;
  std::chrono::system_clock::time_point posted_at;
};

/// Keys of one group in the store.
///
/// A store may hold keys of earlier attempts under the same name: torchrun restarts a job with its store, and a program
/// may destroy a group and create it again. Therefore only one key is read before it is known to belong to this
/// attempt: the announcement of rank 0. It names a process and its secret, so an old one is detected because rank 0
/// does not answer there, and it is read again. All other keys carry the generation of their attempt.
///
/// Keys: headway/GROUP/announcement, and headway/GROUP/GENERATION/failure.
class StoreKeys {
 public:
  StoreKeys(Store& store, std::string const& group) : store_(store), prefix_("headway/" + group + "/") {}

  void post_announcement(Announcement const& announcement);
  /// Waits for an announcement. @returns nothing if there is none by `until`. @throws SystemError if it cannot be read.
  [[nodiscard]] std::optional<Announcement> find_announcement(Deadline until);

  /// Tells ranks that are not connected to this one that connecting failed. Best effort.
  void post_failure(std::string const& generation, BootstrapFailure const& failure) noexcept;
  /// Records that `rank` of this process has given up an attempt. Thread-safe.
  static void conclude(std::string const& generation, int rank);
  [[nodiscard]] static bool is_concluded(std::string const& generation, int rank);
  /// Waits for a posted failure. @returns nothing if there is none by `until`.
  [[nodiscard]] std::optional<PostedFailure> find_failure(std::string const& generation, Deadline until);

 private:
  [[nodiscard]] std::optional<std::string> find(std::string const& key, Deadline until);

  Store& store_;
  std::string prefix_;
};

}  // namespace headway::comm
