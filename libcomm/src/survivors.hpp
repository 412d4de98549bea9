#pragma once

#include "headway/comm/endpoint.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace headway::comm {

/// How many operations a rank has completed: all before the first that it has not.
struct Progress {
  std::vector<std::uint64_t> all_to_alls;  ///< By channel.
  std::uint64_t collectives = 0;
};

/// What a rank knows of the others once its group has failed, and how those that are left agree on who they are.
///
/// Each tells all others whom it takes for a member: in the beginning everybody who is not known to be lost. A rank
/// drops whom another has dropped, and says so again, until all members have named the same ones. The losses come from
/// the connections of the failed group, which needs no store and no coordinator for it. An attempt to connect the
/// members may fail, because one more is lost meanwhile; then they agree again, on the next attempt.
///
/// Does no input or output but what it gets as a sink. Used under the group's lock.
class Survivors final : public ArrivalSink {
 public:
  Survivors(int rank, int size);

  /// Whether a notice is one of these; it means that its sender leaves the failed group behind.
  [[nodiscard]] static bool is_said_in(std::string_view notice);

  // ArrivalSink
  void arrived(int /*source*/, Tag /*tag*/) override {}  // In a group that has failed nobody waits for it.
  void notice(int peer, std::string_view text) override;
  void lost(int peer, std::string_view reason) override;

  /// This rank wants to go on without the ranks that are lost and without those `to_exclude`.
  void begin(Progress own, std::span<int const> to_exclude);
  /// Drops the members that have not said anything yet.
  void exclude_silent();
  /// The members could not be connected in `attempt`: everybody agrees again.
  void give_up(std::uint32_t attempt);
  /// This rank has its new group: that it closes the old one is no loss to those that are still about it.
  [[nodiscard]] std::string done_notice() const;

  /// What to tell all others, if there is something new to tell.
  [[nodiscard]] std::optional<std::string> take_news();
  /// The same, whether it is new or not.
  [[nodiscard]] std::string claim_notice() const;
  [[nodiscard]] bool has_agreed() const;
  [[nodiscard]] std::uint32_t attempt() const { return attempt_; }
  /// Ascending.
  [[nodiscard]] std::vector<int> members() const;
  /// What all members have completed. Meaningful once has_agreed().
  [[nodiscard]] Progress common_progress() const;
  /// A rank that goes on without this one, if there is one.
  [[nodiscard]] std::optional<int> excluded_by() const { return excluded_by_; }
  /// Members that have not said the same as this rank: "rank 2, rank 5".
  [[nodiscard]] std::string who_is_awaited() const;

  /// Whether a member has its new group already.
  [[nodiscard]] bool is_anyone_done() const;

  /// Values by which the members find each other in one attempt: keeps one, and makes the notice of it.
  [[nodiscard]] std::string value_notice(std::uint32_t attempt, std::string const& key, std::string_view value);
  [[nodiscard]] std::optional<std::string> value(std::uint32_t attempt, std::string const& key) const;

 private:
  struct Claim {
    std::uint32_t attempt = 0;
    std::vector<bool> members;
    Progress progress;
  };

  void on_claim(int peer, std::span<std::byte const> body);
  void drop(int peer);
  [[nodiscard]] bool agrees(int peer) const;

  int rank_;
  std::uint32_t attempt_ = 0;
  std::vector<bool> members_;                 ///< (size)
  std::vector<std::optional<Claim>> claims_;  ///< (size) The newest of each peer.
  std::vector<bool> is_done_;                 ///< (size)
  Progress own_;
  std::optional<int> excluded_by_;
  bool has_begun_ = false, has_news_ = false;
  std::map<std::pair<std::uint32_t, std::string>, std::string> values_;  ///< By attempt and key.
};

}  // namespace headway::comm
