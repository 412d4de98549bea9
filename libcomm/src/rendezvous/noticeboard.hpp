#pragma once

#include "headway/comm/endpoint.hpp"
#include "headway/comm/store.hpp"
#include "rendezvous/contact.hpp"
#include "rendezvous/failure.hpp"

#include <chrono>
#include <optional>
#include <string>

namespace headway::comm {

/// The announcement of rank 0, from which the other ranks find it. Rank 0 makes it anew for each attempt to connect.
struct Announcement {
  std::string drawn_secret;  ///< Empty: the ranks were given one.
  Contact contact;

  /// Distinguishes this attempt from every other one under the same store and name.
  [[nodiscard]] std::string generation() const;
};

/// A failure and the time at which its rank posted it.
struct PostedFailure {
  RendezvousFailure failure;
  std::chrono::system_clock::time_point posted_at;
};

/// The keys of one group in the store.
///
/// A store may hold the keys of earlier attempts under the same name: torchrun restarts a job with its store, and a
/// program may destroy a group and make it again. So one key alone is read before it is known to be of this attempt:
/// the announcement of rank 0. It names a process and says its secret, hence an old one shows when rank 0 is not there,
/// and it is read again. All other keys carry the generation of their attempt.
class Noticeboard {
 public:
  Noticeboard(Store& store, std::string const& group) : store_(store), prefix_("headway/" + group + "/") {}

  void post_announcement(Announcement const& announcement);
  /// @returns nothing if there is none by `until`. @throws SystemError if it cannot be read.
  [[nodiscard]] std::optional<Announcement> find_announcement(Deadline until);

  /// Tells ranks that are not connected with this one that connecting failed; best effort.
  void post_failure(std::string const& generation, RendezvousFailure const& failure) noexcept;
  /// Notes that `rank` of this process has given up an attempt. Thread-safe.
  static void conclude(std::string const& generation, int rank);
  [[nodiscard]] static bool is_concluded(std::string const& generation, int rank);
  /// @returns what a rank posted, if any did by `until`.
  [[nodiscard]] std::optional<PostedFailure> find_failure(std::string const& generation, Deadline until);

 private:
  [[nodiscard]] std::optional<std::string> find(std::string const& key, Deadline until);

  Store& store_;
  std::string prefix_;
};

}  // namespace headway::comm
