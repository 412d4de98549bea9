// SPDX-License-Identifier: Apache-2.0

#include "headway/embedding/table_settings.hpp"

#include "headway/base/status.hpp"

#include <utility>
#include <vector>

namespace headway::embedding {

namespace {

/// Names that Python uses, and their values.
template <class Value>
using Names = std::vector<std::pair<std::string, Value>>;

template <class Value>
Value named(Names<Value> const& names, std::string const& name, std::string const& what) {
  std::string all;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i].first == name) return names[i].second;
    all += (i == 0 ? "" : i + 1 < names.size() ? ", " : " or ") + names[i].first;
  }
  throw base::UsageError(what + " must be " + all + ", not '" + name + "'");
}

std::size_t rows_or_unlimited(std::optional<std::size_t> rows) { return rows.value_or(TableOptions::kUnlimited); }

/// Default of `eviction_batch`. A CPU table evicts a few rows per step from its queues. An eviction that scans all rows
/// should be rare, so it goes down to the low water at once: on a device, and if expiry changes the order of eviction.
/// Example: a CPU table with "lru" evicts 128 rows at a time; a table on a device evicts all rows above the low water.
std::size_t default_eviction_batch(bool is_on_host, EvictionPolicy policy, std::uint32_t time_to_live) {
  constexpr std::size_t kFewRows = 128;
  bool const expires_by_count = policy == EvictionPolicy::kLeastFrequentlyUsed && time_to_live > 0;
  return is_on_host && !expires_by_count ? kFewRows : TableOptions::kUnlimited;
}

}  // namespace

TableOptions options_of(TableSettings const& settings, bool is_on_host) {
  static Names<EvictionPolicy> const policies{{"none", EvictionPolicy::kNone},
                                              {"lru", EvictionPolicy::kLeastRecentlyUsed},
                                              {"lfu", EvictionPolicy::kLeastFrequentlyUsed}};
  auto const policy = named(policies, settings.eviction, "eviction");
  return {.dim = settings.dim,
          .initializer = settings.initializer,
          .optimizer = settings.optimizer,
          .max_rows = rows_or_unlimited(settings.max_rows),
          .eviction = policy,
          .high_water = rows_or_unlimited(settings.high_water),
          .low_water = rows_or_unlimited(settings.low_water),
          .eviction_batch =
              settings.eviction_batch.value_or(default_eviction_batch(is_on_host, policy, settings.time_to_live)),
          .time_to_live = settings.time_to_live,
          .min_count = settings.min_count,
          .max_pending = rows_or_unlimited(settings.max_pending),
          .hot_count = settings.hot_count,
          .thread_pool = settings.thread_pool};
}

Initializer initializer_of(std::string const& name, double first, double second, std::uint64_t seed) {
  enum class Kind : std::uint8_t { kConstant, kUniform, kNormal };
  static Names<Kind> const kinds{{"constant", Kind::kConstant}, {"uniform", Kind::kUniform}, {"normal", Kind::kNormal}};
  auto const a = static_cast<float>(first), b = static_cast<float>(second);
  switch (named(kinds, name, "initializer")) {
    case Kind::kConstant:
      return Initializer::constant(a);
    case Kind::kUniform:
      return Initializer::uniform(a, b, seed);
    case Kind::kNormal:
      break;
  }
  return Initializer::normal(a, b, seed);
}

kernels::OptimizerKind optimizer_of(std::string const& name) {
  using Kind = kernels::OptimizerKind;
  static Names<Kind> const kinds{{"sgd", Kind::kSgd},
                                 {"adagrad", Kind::kAdagrad},
                                 {"row_wise_adagrad", Kind::kRowWiseAdagrad},
                                 {"adam", Kind::kAdam},
                                 {"row_wise_adam", Kind::kRowWiseAdam}};
  return named(kinds, name, "optimizer");
}

Dedup dedup_of(std::string const& name) {
  static Names<Dedup> const dedups{
      {"none", Dedup::kNone}, {"first", Dedup::kFirst}, {"second", Dedup::kSecond}, {"both", Dedup::kBoth}};
  return named(dedups, name, "dedup");
}

Pooling pooling_of(std::optional<std::string> const& name) {
  static Names<Pooling> const poolings{{"sum", Pooling::kSum}, {"mean", Pooling::kMean}};
  return name ? named(poolings, *name, "pooling") : Pooling::kNone;
}

}  // namespace headway::embedding
