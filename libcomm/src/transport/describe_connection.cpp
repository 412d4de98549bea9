// SPDX-License-Identifier: Apache-2.0
#include "transport/describe_connection.hpp"

#include <cstddef>
#include <map>
#include <vector>

namespace headway::comm {
namespace {

/// Ascending ranks as ranges. Example: {0, 1, 2, 5} gives "0-2, 5".
std::string describe_ranks(std::vector<int> const& ranks) {
  std::string text;
  for (std::size_t first = 0, next = 0; first < ranks.size(); first = next) {
    for (next = first + 1; next < ranks.size() && ranks[next] == ranks[next - 1] + 1;) ++next;
    text += (first == 0 ? "" : ", ") + std::to_string(ranks[first]);
    if (next - first > 1) text += "-" + std::to_string(ranks[next - 1]);
  }
  return text;
}

}  // namespace

// Example, for rank 0: "group 'main' of 4 ranks: shm with get to 1; verbs to 2-3". "with get" means that this rank can
// read the user memory of those peers.
std::string describe_connection(Endpoint const& endpoint, std::string_view name) {
  std::map<std::string, std::vector<int>> peers_of_transport;
  for (int peer = 0; peer < endpoint.size(); ++peer) {
    if (peer == endpoint.rank()) continue;
    PeerTraits const traits = endpoint.traits(peer);
    peers_of_transport[std::string(traits.transport) + (traits.can_get ? " with get" : "")].push_back(peer);
  }
  std::string text = "group '" + std::string(name) + "' of " + std::to_string(endpoint.size()) + " ranks";
  char const* before = ": ";
  for (auto const& [transport, peers] : peers_of_transport) {
    text += before + transport + " to " + describe_ranks(peers);
    before = "; ";
  }
  return text;
}

}  // namespace headway::comm
