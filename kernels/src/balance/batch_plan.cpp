// SPDX-License-Identifier: Apache-2.0

// The four methods of plan_batches(); batch_plan.hpp explains them.

#include "headway/kernels/batch_plan.hpp"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

namespace headway::kernels {

namespace {

using Numbers = std::span<std::int64_t const>;

[[noreturn]] void refuse(std::string const& what) { throw std::invalid_argument("plan_batches: " + what); }

std::int64_t checked_sum(Numbers values, char const* name) {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] < 0) refuse("sample " + std::to_string(i) + " has " + std::to_string(values[i]) + " " + name);
    if (values[i] > std::numeric_limits<std::int64_t>::max() - sum) {
      refuse(std::string("the sum of ") + name + " does not fit 63 bits");
    }
    sum += values[i];
  }
  return sum;
}

/// Indices of the samples, the heaviest first.
std::vector<std::size_t> heaviest_first(Numbers weights) {
  struct Sample {
    std::int64_t weight;
    std::size_t index;
  };
  std::vector<Sample> samples(weights.size());
  for (std::size_t i = 0; i < samples.size(); ++i) samples[i] = {.weight = weights[i], .index = i};
  std::ranges::sort(samples, [](Sample const& a, Sample const& b) {
    return a.weight != b.weight ? a.weight > b.weight : a.index < b.index;
  });
  std::vector<std::size_t> order(samples.size());
  std::ranges::transform(samples, order.begin(), &Sample::index);
  return order;
}

/// Deals samples to the bin of the least weight that has room.
class GreedyBins {
 public:
  /// @param is_fixed all bins get the same number of samples, +-1
  GreedyBins(BatchPlan const& plan, bool is_fixed)
      : plan_(plan), counts_(bins(plan)), tokens_(plan.max_tokens > 0 ? bins(plan) : 0) {
    auto const num_samples = static_cast<std::int64_t>(plan.ranks.size());
    most_ = is_fixed ? num_samples / plan.num_ranks : num_samples;
    num_larger_ = is_fixed ? num_samples % plan.num_ranks : 0;
    for (std::int64_t bin = 0; bin < plan.num_ranks; ++bin) heap_.push_back({.bin = bin});
  }

  /// Returns the bin of a sample; nothing if no bin has room.
  std::optional<std::int64_t> put(std::size_t sample, std::int64_t weight) {
    skipped_.clear();
    std::optional<std::int64_t> found;
    while (!found && !heap_.empty()) {
      std::pop_heap(heap_.begin(), heap_.end(), std::greater{});
      Bin bin = heap_.back();
      heap_.pop_back();
      if (counts_[at(bin.bin)] == most_ && num_larger_ == 0) continue;  // Full for good.
      if (!has_tokens(bin.bin, sample)) {
        skipped_.push_back(bin);
        continue;
      }
      found = bin.bin;
      take(bin, sample, weight);
    }
    for (Bin const& bin : skipped_) push(bin);
    return found;
  }

 private:
  /// Ordered by weight. Bins of one weight take turns, so samples without weight are spread.
  struct Bin {
    std::int64_t weight = 0;
    std::int64_t count = 0;
    std::int64_t bin = 0;
    friend bool operator>(Bin const& a, Bin const& b) {
      return std::tie(a.weight, a.count, a.bin) > std::tie(b.weight, b.count, b.bin);
    }
  };

  static std::size_t bins(BatchPlan const& plan) { return static_cast<std::size_t>(plan.num_ranks); }
  static std::size_t at(std::int64_t bin) { return static_cast<std::size_t>(bin); }

  [[nodiscard]] bool has_tokens(std::int64_t bin, std::size_t sample) const {
    return plan_.max_tokens == 0 || plan_.tokens[sample] <= plan_.max_tokens - tokens_[at(bin)];
  }

  void take(Bin bin, std::size_t sample, std::int64_t weight) {
    if (plan_.max_tokens > 0) tokens_[at(bin.bin)] += plan_.tokens[sample];
    bool const is_larger = ++counts_[at(bin.bin)] > most_;
    if (is_larger) --num_larger_;
    if (!is_larger) push({.weight = bin.weight + weight, .count = bin.count + 1, .bin = bin.bin});
  }

  void push(Bin const& bin) {
    heap_.push_back(bin);
    std::push_heap(heap_.begin(), heap_.end(), std::greater{});
  }

  BatchPlan const& plan_;
  std::vector<Bin> heap_;  ///< The bins that are not full; the one of the least weight is on top.
  std::vector<Bin> skipped_;
  std::vector<std::int64_t> counts_, tokens_;
  std::int64_t most_ = 0;        ///< Samples of a bin.
  std::int64_t num_larger_ = 0;  ///< Bins that may still get one more.
};

/// Deals all samples greedily by weights. @returns the sample that found no room, if any.
std::optional<std::size_t> deal_greedily(BatchPlan const& plan, Numbers weights, bool is_fixed) {
  GreedyBins bins(plan, is_fixed);
  for (std::size_t const sample : heaviest_first(weights)) {
    auto const bin = bins.put(sample, weights[sample]);
    if (!bin) return sample;
    plan.ranks[sample] = *bin;
  }
  return std::nullopt;
}

void deal_zigzag(BatchPlan const& plan) {
  std::int64_t position = 0;
  for (std::size_t const sample : heaviest_first(plan.weights)) {
    std::int64_t const turn = position / plan.num_ranks, place = position % plan.num_ranks;
    plan.ranks[sample] = turn % 2 == 0 ? place : plan.num_ranks - 1 - place;
    ++position;
  }
}

/// Cuts the sorted list. A segment ends where one more sample would leave it further above its share of the rest than
/// it is below without it.
void deal_segments(BatchPlan const& plan, std::int64_t total) {
  std::vector<std::int64_t> const ones(total == 0 ? plan.weights.size() : 0, 1);
  Numbers const weights = total == 0 ? Numbers(ones) : plan.weights;
  // The weight of this segment and of those behind it.
  std::int64_t rest = total == 0 ? static_cast<std::int64_t>(ones.size()) : total;
  std::int64_t segment = 0, weight = 0;
  for (std::size_t const sample : heaviest_first(weights)) {
    std::int64_t const missing = rest / (plan.num_ranks - segment) - weight;
    bool const is_last = segment == plan.num_ranks - 1;
    if (!is_last && weight > 0 && weights[sample] - missing > missing) {
      rest -= weight;
      weight = 0;
      ++segment;
    }
    plan.ranks[sample] = segment;
    weight += weights[sample];
  }
}

bool is_within_limit(BatchPlan const& plan) {
  if (plan.max_tokens == 0) return true;
  std::vector<std::int64_t> of_ranks(static_cast<std::size_t>(plan.num_ranks));
  for (std::size_t i = 0; i < plan.ranks.size(); ++i)
    of_ranks[static_cast<std::size_t>(plan.ranks[i])] += plan.tokens[i];
  return std::ranges::max(of_ranks) <= plan.max_tokens;
}

void deal(BatchPlan const& plan, std::int64_t total) {
  bool const is_fixed = plan.method == BatchPlanMethod::kFixedGreedy || plan.method == BatchPlanMethod::kFixedZigzag;
  if (plan.method == BatchPlanMethod::kFixedZigzag) deal_zigzag(plan);
  if (plan.method == BatchPlanMethod::kVariableSegments) deal_segments(plan, total);
  bool const is_greedy =
      plan.method == BatchPlanMethod::kFixedGreedy || plan.method == BatchPlanMethod::kVariableGreedy;
  if (!is_greedy && is_within_limit(plan)) return;
  if (!deal_greedily(plan, plan.weights, is_fixed)) return;
  if (auto const sample = deal_greedily(plan, plan.tokens, is_fixed)) {
    refuse("no rank has room for sample " + std::to_string(*sample) + " of " + std::to_string(plan.tokens[*sample]) +
           " tokens: " + std::to_string(plan.num_ranks) + " ranks hold at most " + std::to_string(plan.max_tokens) +
           " tokens each");
  }
}

}  // namespace

void plan_batches(BatchPlan const& plan) {
  std::size_t const num_samples = plan.ranks.size();
  if (plan.num_ranks < 1 || plan.step < 0 || plan.max_tokens < 0) {
    refuse("num_ranks is at least 1, step and max_tokens are at least 0");
  }
  if (plan.weights.size() != num_samples || (plan.tokens.size() != num_samples && plan.max_tokens > 0)) {
    refuse("weights, tokens and ranks must be of one size");
  }
  std::int64_t const total = checked_sum(plan.weights, "weight");
  checked_sum(plan.tokens, "tokens");
  deal(plan, total);
  for (std::int64_t& rank : plan.ranks) rank = (rank + plan.step % plan.num_ranks) % plan.num_ranks;
}

}  // namespace headway::kernels
