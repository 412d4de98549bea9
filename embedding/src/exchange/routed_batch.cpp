// SPDX-License-Identifier: Apache-2.0

#include "headway/embedding/routed_batch.hpp"

#include "exchange/inputs.hpp"
#include "headway/base/status.hpp"

#include <limits>
#include <utility>

namespace headway::embedding {

struct RoutedBatch::Lookup {
  Inputs inputs;
  UniqueBlocks unique;              ///< (U) Sorted by owner.
  std::vector<std::size_t> ends{};  ///< (owners) End of each owner's keys.
  Block<float> rows{};              ///< (U, dim), from the first call of rows().
};

RoutedBatch::RoutedBatch(std::shared_ptr<BatchDevice> device, std::span<Feature const> features,
                         std::map<std::uint32_t, std::size_t> const& merged_of, std::span<std::size_t const> dims,
                         std::uint32_t num_owners)
    : device_(std::move(device)), dims_(dims.begin(), dims.end()) {
  base::expects(device_->is_host(), "RoutedBatch: batches are in host memory");
  for (auto& inputs : join_by_table(*device_, features, merged_of, dims_.size())) {
    auto& lookup = lookups_.emplace_back(Lookup{.inputs = std::move(inputs), .unique = {}});
    auto [by_owner, counts] = device_->sort_by_owner(device_->deduplicate(lookup.inputs.keys()), num_owners);
    lookup.unique = std::move(by_owner);
    std::size_t end = 0;
    for (auto const count : counts.span) lookup.ends.push_back(end += static_cast<std::size_t>(count));
  }
}

RoutedBatch::~RoutedBatch() = default;
RoutedBatch::RoutedBatch(RoutedBatch&&) noexcept = default;
RoutedBatch& RoutedBatch::operator=(RoutedBatch&&) noexcept = default;

RoutedBatch::Range RoutedBatch::range(std::size_t merged, std::size_t owner) const {
  auto const& ends = lookups_[merged].ends;
  std::size_t const first = owner == 0 ? 0 : ends[owner - 1];
  return {.first = first, .count = ends[owner] - first};
}

Keys RoutedBatch::keys(std::size_t merged, std::size_t owner) const {
  auto const [first, count] = range(merged, owner);
  return lookups_[merged].unique.keys().subspan(first, count);
}

std::size_t RoutedBatch::num_bags(std::size_t merged) const { return lookups_[merged].inputs.num_bags; }

std::span<float> RoutedBatch::rows(std::size_t merged, std::size_t owner) {
  auto& lookup = lookups_[merged];
  if (lookup.rows.empty()) lookup.rows = device_->block<float>(lookup.unique.num_rows() * dims_[merged]);
  return of_owner(lookup.rows.span, merged, owner);
}

void RoutedBatch::expand(std::size_t merged, std::span<float> out) const {
  auto const& lookup = lookups_[merged];
  device_->expand(lookup.unique, lookup.inputs.bags(), dims_[merged], lookup.rows.span, out);
}

std::vector<std::uint32_t> RoutedBatch::distinct_bags(std::size_t merged) const {
  constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
  auto const& [inputs, unique, ends, rows] = lookups_[merged];
  std::vector<std::uint32_t> indices(inputs.num_bags), of_key(unique.num_rows() + 1, kNone);  // The last one: no key.
  std::uint32_t next = 0;
  for (std::size_t bag = 0; bag < inputs.num_bags; ++bag) {
    bool const are_ids = inputs.offsets.empty();  // Each id is a bag.
    auto const first = are_ids ? bag : static_cast<std::size_t>(inputs.offsets.span[bag]);
    auto const end = are_ids ? bag + 1 : static_cast<std::size_t>(inputs.offsets.span[bag + 1]);
    bool const is_one_id = end == first + 1 && (inputs.weights.empty() || inputs.weights.span[first] == 1);
    if (!is_one_id && end != first) {
      indices[bag] = next++;
      continue;
    }
    auto& known = of_key[end == first ? unique.num_rows() : unique.inverse_indices.span[first]];
    if (known == kNone) known = next++;
    indices[bag] = known;
  }
  if (next == inputs.num_bags) indices.clear();
  return indices;
}

Block<float> RoutedBatch::reduce(std::size_t merged, std::span<float const> gradients) const {
  auto const& lookup = lookups_[merged];
  base::expects(gradients.size() == lookup.inputs.num_bags * dims_[merged],
                "reduce: one gradient for each bag of a merged table");
  auto sums = device_->block<float>(lookup.unique.num_rows() * dims_[merged]);
  device_->reduce(lookup.unique, lookup.inputs.bags(), dims_[merged], gradients, sums.span);
  return sums;
}

}  // namespace headway::embedding
