// SPDX-License-Identifier: Apache-2.0
#include "systems.hpp"

#include "flat_table.hpp"

#include <headway/embedding/table.hpp>

#include <algorithm>
#include <cstring>
#include <thread>
#include <unordered_map>

#if HEADWAY_HAS_BOOST
#include <boost/unordered/unordered_flat_map.hpp>
#endif
#if HEADWAY_HAS_ABSEIL
#include <absl/container/flat_hash_map.h>
#endif

namespace headway::benchmarks {

namespace {

/// Headway's CPU table. rows_ is scratch memory of find_embeddings().
class HeadwayTable final : public TableSystem {
 public:
  HeadwayTable(std::size_t dim, int num_threads)
      : table_(
            embedding::make_cpu_table({.dim = dim, .thread_pool = std::make_shared<base::ThreadPool>(num_threads)})) {}

  void insert(std::span<std::uint64_t const> ids, std::span<float const> embeddings) override {
    table_->insert_or_assign({.ids = ids}, embeddings, {});
  }
  void find_rows(std::span<std::uint64_t const> ids, std::span<std::uint32_t> out) override {
    static_assert(sizeof(embedding::RowId) == sizeof(std::uint32_t));
    table_->find({.ids = ids}, {reinterpret_cast<embedding::RowId*>(out.data()), out.size()}, {});
  }
  void find_embeddings(std::span<std::uint64_t const> ids, std::span<float> out) override {
    rows_.resize(ids.size());
    table_->find({.ids = ids}, rows_, {});
    table_->gather({.ids = ids}, rows_, out);
  }

 private:
  std::unique_ptr<embedding::Table> table_;
  std::vector<embedding::RowId> rows_;
};

/// Divides [0, count) among `num_threads` threads, including the caller's, and calls `find(first, end)` on each.
template <class Find>
void in_ranges(std::size_t count, std::size_t num_threads, Find const& find) {
  std::vector<std::jthread> threads;
  std::size_t const each = (count + num_threads - 1) / num_threads;
  for (std::size_t first = each; first < count; first += each) {
    threads.emplace_back([&find, count, first, each] { find(first, std::min(first + each, count)); });
  }
  find(std::size_t{0}, std::min(each, count));
}

/// FlatTable. Lookups use all threads, insertion one.
class FlatSystem final : public TableSystem {
 public:
  FlatSystem(std::size_t dim, int num_threads)
      : dim_(dim), num_threads_(static_cast<std::size_t>(num_threads)), table_(dim) {}

  void insert(std::span<std::uint64_t const> ids, std::span<float const> embeddings) override {
    table_.insert(ids, embeddings);
  }
  void find_rows(std::span<std::uint64_t const> ids, std::span<std::uint32_t> out) override {
    in_ranges(ids.size(), num_threads_, [&](std::size_t first, std::size_t end) {
      table_.find_rows(ids.subspan(first, end - first), out.subspan(first, end - first));
    });
  }
  void find_embeddings(std::span<std::uint64_t const> ids, std::span<float> out) override {
    in_ranges(ids.size(), num_threads_, [&](std::size_t first, std::size_t end) {
      table_.find_embeddings(ids.subspan(first, end - first), out.subspan(first * dim_, (end - first) * dim_));
    });
  }

 private:
  std::size_t dim_, num_threads_;
  FlatTable table_;
};

/// A hash map from ids to rows, and all rows in one std::vector. Lookups use all threads, insertion one.
template <class Map>
class MapAndRows final : public TableSystem {
 public:
  MapAndRows(std::size_t dim, int num_threads) : dim_(dim), num_threads_(static_cast<std::size_t>(num_threads)) {}

  void insert(std::span<std::uint64_t const> ids, std::span<float const> embeddings) override {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      bool const is_new = rows_.try_emplace(ids[i], static_cast<std::uint32_t>(rows_.size())).second;
      auto const embedding = embeddings.subspan(i * dim_, dim_);
      if (is_new) values_.insert(values_.end(), embedding.begin(), embedding.end());
    }
  }
  void find_rows(std::span<std::uint64_t const> ids, std::span<std::uint32_t> out) override {
    in_ranges(ids.size(), num_threads_, [&](std::size_t first, std::size_t end) {
      for (std::size_t i = first; i < end; ++i) {
        auto const at = rows_.find(ids[i]);
        if (at != rows_.end()) out[i] = at->second;
      }
    });
  }
  void find_embeddings(std::span<std::uint64_t const> ids, std::span<float> out) override {
    in_ranges(ids.size(), num_threads_, [&](std::size_t first, std::size_t end) {
      for (std::size_t i = first; i < end; ++i) {
        auto const at = rows_.find(ids[i]);
        if (at != rows_.end()) std::memcpy(&out[i * dim_], &values_[at->second * dim_], dim_ * sizeof(float));
      }
    });
  }

 private:
  std::size_t dim_, num_threads_;
  Map rows_;
  std::vector<float> values_;
};

}  // namespace

std::vector<NamedTableSystem> make_table_systems(std::size_t dim, int num_threads) {
  std::vector<NamedTableSystem> systems;
  systems.push_back({"headway", std::make_unique<HeadwayTable>(dim, num_threads)});
  systems.push_back({"flat_table_with_prefetch", std::make_unique<FlatSystem>(dim, num_threads)});
#if HEADWAY_HAS_BOOST
  using BoostMap = boost::unordered_flat_map<std::uint64_t, std::uint32_t>;
  systems.push_back({"boost_unordered_flat_map", std::make_unique<MapAndRows<BoostMap>>(dim, num_threads)});
#endif
#if HEADWAY_HAS_ABSEIL
  using AbseilMap = absl::flat_hash_map<std::uint64_t, std::uint32_t>;
  systems.push_back({"absl_flat_hash_map", std::make_unique<MapAndRows<AbseilMap>>(dim, num_threads)});
#endif
  using StandardMap = std::unordered_map<std::uint64_t, std::uint32_t>;
  systems.push_back({"std_unordered_map", std::make_unique<MapAndRows<StandardMap>>(dim, num_threads)});
  return systems;
}

}  // namespace headway::benchmarks
