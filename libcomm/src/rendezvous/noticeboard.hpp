#pragma once

#include "headway/comm/endpoint.hpp"
#include "headway/comm/store.hpp"
#include "rendezvous/failure.hpp"

#include <optional>
#include <string>

namespace headway::comm {

/// What the ranks of one group tell each other through the store before they are connected.
class Noticeboard {
 public:
  Noticeboard(Store& store, std::string const& group) : store_(store), prefix_("headway/" + group + "/") {}

  /// The group's secret: `given`, or what rank 0 drew where it was given none.
  /// @throws SystemError if rank 0 was given one and this rank was not, or rank 0 does not appear in time.
  [[nodiscard]] std::string agree_on_secret(int rank, std::string const& given, Deadline deadline);

  void post_contact(int rank, std::string const& text);
  /// @returns nothing if `rank` has not posted its contact by `until`.
  [[nodiscard]] std::optional<std::string> find_contact(int rank, Deadline until);

  /// Tells ranks that are not connected with this one that the rendezvous failed; best effort.
  void post_failure(RendezvousFailure const& failure) noexcept;
  /// What a rank posted, if any did; hardly waits.
  [[nodiscard]] std::optional<RendezvousFailure> find_failure();

 private:
  [[nodiscard]] std::optional<std::string> find(std::string const& key, Deadline until);

  Store& store_;
  std::string prefix_;
};

}  // namespace headway::comm
