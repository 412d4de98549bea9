// SPDX-License-Identifier: Apache-2.0

// Tables and lookups as custom classes of torch, and torch.ops.headway.look_up.
//
// Idea: a program that loads libheadway_operators finds the classes by name (torch::getCustomClass), without a header
// of this project and without Python. headway._embedding binds the same C++ objects to Python a second time, since a
// call of a custom class costs Python 5 to 10 us, and one of a bound function 1 to 3 us (docs/design/operators.md).
// look_up() is an operator, so that torch.export keeps a lookup as one call.
//
// Example: examples/torch_consumer/look_up.cpp makes a table and a lookup, and calls the operator.
//
// Invariant: a saved program has the name of its lookup only (lookup_registry.hpp).

#include "devices.hpp"
#include "headway/base/status.hpp"
#include "headway/embedding/table_settings.hpp"
#include "lookup_registry.hpp"
#include "tensor_lookup.hpp"
#include "tensor_table.hpp"

#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace headway::embedding {

namespace {

using TablePtr = c10::intrusive_ptr<TensorTable>;
using LookupPtr = c10::intrusive_ptr<TensorLookup>;
using BatchPtr = TensorLookup::BatchPtr;
using Tensors = std::vector<at::Tensor>;
using OptionalTensors = std::vector<std::optional<at::Tensor>>;

template <class To>
std::optional<To> optional_of(std::optional<std::int64_t> value) {
  return value ? std::optional<To>(static_cast<To>(*value)) : std::nullopt;
}

/// Table ids have 32 bits. @throws base::UsageError for larger or negative ones
std::vector<std::uint32_t> table_ids_of(std::vector<std::int64_t> const& values) {
  std::vector<std::uint32_t> ids;
  for (auto const value : values) {
    base::expects(value >= 0 && value <= UINT32_MAX,
                  "the number of a table is from 0 to 2^32 - 1, not " + std::to_string(value));
    ids.push_back(static_cast<std::uint32_t>(value));
  }
  return ids;
}

/// @param first, second parameters of the initializer: bounds (uniform), or mean and deviation (normal)
/// @param eviction none, lru or lfu; TableSettings explains this and the other parameters
TablePtr make_table(std::int64_t dim, std::string const& initializer, double first, double second, std::int64_t seed,
                    std::string const& optimizer, std::optional<std::int64_t> max_rows, std::string const& eviction,
                    std::optional<std::int64_t> high_water, std::optional<std::int64_t> low_water,
                    std::int64_t time_to_live, std::int64_t min_count, std::int64_t num_threads, at::Device device) {
  base::expects(dim > 0, "dim must be from 1, not " + std::to_string(dim));
  base::expects(time_to_live >= 0 && min_count >= 0, "time_to_live and min_count must not be negative");
  kernels::OptimizerOptions const options{.kind = optimizer_of(optimizer)};
  TableSettings const settings{
      .dim = static_cast<std::size_t>(dim),
      .initializer = initializer_of(initializer, first, second, static_cast<std::uint64_t>(seed)),
      .optimizer = kernels::RowOptimizer(options).options(),
      .max_rows = optional_of<std::size_t>(max_rows),
      .eviction = eviction,
      .high_water = optional_of<std::size_t>(high_water),
      .low_water = optional_of<std::size_t>(low_water),
      .time_to_live = static_cast<std::uint32_t>(time_to_live),
      .min_count = static_cast<std::uint32_t>(min_count),
      .thread_pool = device.is_cpu() ? std::make_shared<base::ThreadPool>(static_cast<int>(num_threads)) : nullptr};
  auto const resolved = resolve(device);
  return c10::make_intrusive<TensorTable>(options_of(settings, resolved.is_cpu()), resolved);
}

/// Imports the records of a table that a rank owns: first rows, then pending keys, which are counted but have no row
/// yet. @param encoded (1, bytes) uint8 each, as in a state_dict()
void import_records(TablePtr const& table, Tensors const& encoded, std::int64_t rank, std::int64_t num_ranks) {
  base::expects(rank >= 0 && rank < num_ranks, "rank must be from 0 to num_ranks - 1");
  for (bool const are_pending : {false, true}) {
    for (auto const& each : encoded) {
      table->import_records(decode(each), are_pending, static_cast<std::uint32_t>(rank),
                            static_cast<std::uint32_t>(num_ranks));
    }
  }
}

/// @param tables merged tables: each holds tables of equal configuration, which share rows and exchanges
/// @param table_ids ids of the tables in each merged table
/// @param names, feature_tables, poolings (features) name, table id, and sum, mean or none
/// @param dedup stage that removes duplicate keys, see dedup_of()
LookupPtr make_lookup(std::vector<TablePtr> const& tables, std::vector<std::vector<std::int64_t>> const& table_ids,
                      std::vector<std::string> names, std::vector<std::int64_t> const& feature_tables,
                      std::vector<std::optional<std::string>> const& poolings,
                      std::optional<c10::intrusive_ptr<c10d::ProcessGroup>> const& group, std::string const& dedup) {
  base::expects(!tables.empty() && table_ids.size() == tables.size(), "table_ids needs one list for each table");
  std::vector<LookedUpTable> merged;
  for (std::size_t i = 0; i < tables.size(); ++i) {
    merged.push_back({.table = tables[i], .numbers = table_ids_of(table_ids[i])});
  }
  std::vector<Pooling> kinds;
  for (auto const& pooling : poolings) kinds.push_back(pooling_of(pooling));
  auto const& pool = tables.front()->options().thread_pool;
  return c10::make_intrusive<TensorLookup>(std::move(merged), std::move(names), table_ids_of(feature_tables),
                                           std::move(kinds), group.value_or(c10::intrusive_ptr<c10d::ProcessGroup>()),
                                           dedup_of(dedup), pool, tables.front()->device(), true);
}

/// Updates the rows that have gradients. @param step from 1 @param rate learning rate of all tables
void apply(LookupPtr const& lookup, std::int64_t step, double rate) {
  auto const& table_ids = lookup->table_numbers();
  std::vector<std::map<std::uint32_t, double>> rates;
  for (auto const& of_merged : table_ids) {
    auto& of_tables = rates.emplace_back();
    for (auto const id : of_merged) of_tables[id] = rate;
  }
  lookup->apply(static_cast<std::uint64_t>(step), rates, std::vector<double>(table_ids.size(), 1));
}

/// A lookup for inference: it inserts and counts nothing, and has no gradient.
Tensors look_up(LookupPtr const& lookup, Tensors const& ids, Tensors const& lengths, OptionalTensors const& weights) {
  at::NoGradGuard const no_grad;
  return lookup->finish(lookup->begin(ids, lengths, weights, {.inserts = false, .evaluates = true}), {});
}

/// Describes a lookup to torch.export: columns and pooling of its outputs.
using Flat = std::tuple<std::tuple<std::string, std::vector<std::int64_t>>, std::tuple<std::string, std::vector<bool>>>;
Flat flatten(LookupPtr const& lookup) { return {{"dims", lookup->output_dims()}, {"pooled", lookup->are_pooled()}}; }

}  // namespace

TORCH_LIBRARY_FRAGMENT(headway, library) {
  library.class_<TensorBatch>("LookupBatch");
  library.class_<TensorTable>("EmbeddingTable")
      .def(torch::init(&make_table), "",
           {torch::arg("dim"), torch::arg("initializer") = "uniform", torch::arg("first") = -0.05,
            torch::arg("second") = 0.05, torch::arg("seed") = 0, torch::arg("optimizer") = "sgd",
            torch::arg("max_rows") = std::nullopt, torch::arg("eviction") = "none",
            torch::arg("high_water") = std::nullopt, torch::arg("low_water") = std::nullopt,
            torch::arg("time_to_live") = 0, torch::arg("min_count") = 1, torch::arg("num_threads") = 1,
            torch::arg("device") = at::Device(at::kCPU)})
      .def("num_rows", [](TablePtr const& table) { return static_cast<std::int64_t>(table->table().size().rows); })
      .def("import_records", &import_records);
  library.class_<TensorLookup>("TableLookup")
      .def(torch::init(&make_lookup), "",
           {torch::arg("tables"), torch::arg("table_ids"), torch::arg("names"), torch::arg("feature_tables"),
            torch::arg("poolings"), torch::arg("group") = std::nullopt, torch::arg("dedup") = "both"})
      .def("begin",
           [](LookupPtr const& lookup, Tensors const& ids, Tensors const& lengths, OptionalTensors const& weights,
              bool inserts) {
             return lookup->begin(ids, lengths, weights, {.inserts = inserts, .evaluates = !inserts});
           })
      .def("finish", [](LookupPtr const& lookup, BatchPtr const& batch,
                        Tensors const& anchors) { return lookup->finish(batch, anchors); })
      .def("apply", &apply)
      .def("drop", [](LookupPtr const& lookup) { lookup->drop(); })
      .def("output_dims", [](LookupPtr const& lookup) { return lookup->output_dims(); })
      .def("are_pooled", [](LookupPtr const& lookup) { return lookup->are_pooled(); })
      .def("register_as", [](LookupPtr const& lookup, std::string const& name) { register_lookup(name, lookup); })
      .def("__obj_flatten__", &flatten)
      // A saved program holds the name of a lookup, and no tables.
      .def_pickle([](LookupPtr const& lookup) { return registered_name(lookup); },
                  [](std::string const& name) { return registered_lookup(name); });
  library.def(
      "look_up(__torch__.torch.classes.headway.TableLookup lookup, Tensor[] ids, Tensor[] lengths, Tensor?[] weights) "
      "-> Tensor[]");
}

TORCH_LIBRARY_IMPL(headway, CPU, library) { library.impl("look_up", &look_up); }
TORCH_LIBRARY_IMPL(headway, CUDA, library) { library.impl("look_up", &look_up); }

}  // namespace headway::embedding
