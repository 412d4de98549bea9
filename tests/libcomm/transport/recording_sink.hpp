// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/comm/endpoint.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace headway::comm {

/// Records all reports of poll().
class RecordingSink final : public ArrivalSink {
 public:
  void arrived(int source, Tag tag) override { ++arrivals_[{source, tag.packed()}]; }
  void on_oob(int peer, std::string_view text) override { oob_messages_.emplace_back(peer, text); }
  void lost(int peer, std::string_view reason) override { losses_.emplace_back(peer, reason); }

  [[nodiscard]] bool has(int source, Tag tag) const { return arrivals_.count({source, tag.packed()}) > 0; }
  /// Number of different tags of `source` that arrived.
  [[nodiscard]] std::size_t tags_from(int source) const {
    std::size_t tags = 0;
    for (auto const& [key, repeats] : arrivals_) tags += key.first == source ? 1 : 0;
    return tags;
  }
  [[nodiscard]] std::size_t losses_of(int peer) const {
    std::size_t losses = 0;
    for (auto const& [lost_peer, reason] : losses_) losses += lost_peer == peer ? 1 : 0;
    return losses;
  }
  [[nodiscard]] std::vector<std::pair<int, std::string>> const& oob_messages() const { return oob_messages_; }
  [[nodiscard]] std::vector<std::pair<int, std::string>> const& losses() const { return losses_; }

 private:
  std::map<std::pair<int, std::uint32_t>, int> arrivals_;  ///< Counts by (source, packed tag).
  std::vector<std::pair<int, std::string>> oob_messages_;
  std::vector<std::pair<int, std::string>> losses_;
};

}  // namespace headway::comm
