#include "headway/embedding/routing.hpp"

#include "headway/comm/status.hpp"

#include <limits>
#include <numeric>
#include <string>

namespace headway::embedding {

Route route(Keys const& keys, std::uint32_t num_ranks) {
  comm::expects(num_ranks >= 1 && num_ranks <= kNumVirtualBuckets,
                "keys cannot be divided among " + std::to_string(num_ranks) + " ranks");
  comm::expects(keys.size() <= std::numeric_limits<std::uint32_t>::max(), "a batch has less than 2^32 keys");
  std::vector<std::uint32_t> owners(keys.size());
  Route route{.order = std::vector<std::uint32_t>(keys.size()), .counts = std::vector<std::int64_t>(num_ranks)};
  for (std::size_t i = 0; i < keys.size(); ++i) {
    owners[i] = owner_of(virtual_bucket_of(hash_of(keys[i])), num_ranks);
    ++route.counts[owners[i]];
  }
  std::vector<std::int64_t> next(num_ranks);
  std::exclusive_scan(route.counts.begin(), route.counts.end(), next.begin(), std::int64_t{0});
  for (std::size_t i = 0; i < keys.size(); ++i) {
    route.order[static_cast<std::size_t>(next[owners[i]]++)] = static_cast<std::uint32_t>(i);
  }
  return route;
}

}  // namespace headway::embedding
