// headway._embedding: tables of embeddings for Python. See python/headway/_embedding.pyi for its types.

#include "headway/comm/status.hpp"
#include "headway/embedding/deduplicator.hpp"
#include "headway/embedding/routing.hpp"
#include "headway/embedding/table.hpp"
#include "headway/embedding/workers.hpp"
#include "tensors.hpp"
#include "torch_headers.hpp"

#include <pybind11/stl.h>
#include <torch/version.h>

#include <map>
#include <string>

namespace py = pybind11;

namespace headway::embedding {

namespace {

using WithoutGil = py::call_guard<py::gil_scoped_release>;

template <class Value>
Value named(std::map<std::string, Value> const& values, std::string const& name, char const* what) {
  auto const found = values.find(name);
  if (found == values.end()) throw py::value_error(std::string("there is no ") + what + " '" + name + "'");
  return found->second;
}

kernels::OptimizerOptions make_optimizer(std::string const& kind, double eps, double beta1, double beta2,
                                         double initial_accumulator_value, double weight_decay,
                                         bool decoupled_weight_decay) {
  using Kind = kernels::OptimizerKind;
  static std::map<std::string, Kind> const kinds{{"sgd", Kind::kSgd},
                                                 {"adagrad", Kind::kAdagrad},
                                                 {"row_wise_adagrad", Kind::kRowWiseAdagrad},
                                                 {"adam", Kind::kAdam},
                                                 {"row_wise_adam", Kind::kRowWiseAdam}};
  kernels::OptimizerOptions const options{
      .kind = named(kinds, kind, "optimizer"),
      .epsilon = eps,
      .beta1 = beta1,
      .beta2 = beta2,
      .initial_accumulator = initial_accumulator_value,
      .weight_decay = weight_decay,
      .decay = decoupled_weight_decay ? kernels::WeightDecay::kDecoupled : kernels::WeightDecay::kL2};
  return kernels::RowOptimizer(options).options();  // Which refuses what is out of range.
}

/// Threads as Python holds them.
struct Workers {
  std::shared_ptr<WorkerPool> pool;
};

std::size_t rows_or_unlimited(std::optional<std::size_t> rows) { return rows.value_or(TableOptions::kUnlimited); }

std::unique_ptr<Table> make_table(std::size_t dim, Initializer const& initializer,
                                  kernels::OptimizerOptions const& optimizer, std::optional<std::size_t> max_rows,
                                  std::string const& eviction, std::optional<std::size_t> high_water,
                                  std::optional<std::size_t> low_water, std::uint32_t time_to_live,
                                  std::uint32_t min_count, std::optional<std::size_t> max_pending,
                                  std::uint32_t hot_count, Workers const& workers) {
  static std::map<std::string, EvictionPolicy> const policies{{"none", EvictionPolicy::kNone},
                                                              {"lru", EvictionPolicy::kLeastRecentlyUsed},
                                                              {"lfu", EvictionPolicy::kLeastFrequentlyUsed}};
  return make_cpu_table({.dim = dim,
                         .initializer = initializer,
                         .optimizer = optimizer,
                         .max_rows = rows_or_unlimited(max_rows),
                         .eviction = named(policies, eviction, "policy of eviction"),
                         .high_water = rows_or_unlimited(high_water),
                         .low_water = rows_or_unlimited(low_water),
                         .time_to_live = time_to_live,
                         .min_count = min_count,
                         .max_pending = rows_or_unlimited(max_pending),
                         .hot_count = hot_count,
                         .workers = workers.pool});
}

// Rows and statuses of tensors

at::Tensor empty(std::int64_t size, at::ScalarType type) { return at::empty({size}, at::TensorOptions(type)); }

std::span<RowId> rows_of(at::Tensor const& rows) {
  auto const words = span_of<std::uint32_t>(rows, at::kInt, "rows");
  return {reinterpret_cast<RowId*>(words.data()), words.size()};
}

std::span<KeyStatus> statuses_of(at::Tensor const& statuses) {
  auto const words = span_of<std::uint8_t>(statuses, at::kByte, "statuses");
  return {reinterpret_cast<KeyStatus*>(words.data()), words.size()};
}

using RowsAndStatuses = std::pair<at::Tensor, at::Tensor>;

template <class Look>
RowsAndStatuses look_up(KeyTensors const& keys, Look look) {
  auto const view = keys.view();
  auto const size = static_cast<std::int64_t>(view.size());
  RowsAndStatuses result{empty(size, at::kInt), empty(size, at::kByte)};
  look(view, rows_of(result.first), statuses_of(result.second));
  return result;
}

at::Tensor gather(Table const& table, KeyTensors const& keys, at::Tensor const& rows) {
  auto const view = keys.view();
  auto out = at::empty({static_cast<std::int64_t>(view.size()), static_cast<std::int64_t>(table.dim())}, at::kFloat);
  table.gather(view, rows_of(rows), span_of<float>(out, at::kFloat, "out"));
  return out;
}

void update(Table& table, KeyTensors const& keys, at::Tensor const& rows, at::Tensor const& gradients,
            double learning_rate, std::uint64_t step) {
  table.update(keys.view(), rows_of(rows), floats_of(gradients, "gradients"),
               {.learning_rate = learning_rate, .number = step});
}

at::Tensor insert_or_assign(Table& table, KeyTensors const& keys, at::Tensor const& vectors) {
  auto statuses = empty(keys.ids.numel(), at::kByte);
  table.insert_or_assign(keys.view(), floats_of(vectors, "vectors"), statuses_of(statuses));
  return statuses;
}

// Records

KeyTensors keys_of(Records records, std::optional<at::Tensor> counts = std::nullopt) {
  return {tensor_of(std::move(records.ids), at::kLong), tensor_of(std::move(records.tables), at::kInt), 0,
          std::move(counts)};
}

KeyTensors list(Table const& table, std::uint32_t first_bucket, std::uint32_t end_bucket) {
  return keys_of(table.list(first_bucket, end_bucket));
}

KeyTensors list_pending(Table const& table, std::uint32_t first_bucket, std::uint32_t end_bucket) {
  auto records = table.list_pending(first_bucket, end_bucket);
  auto counts = tensor_of(std::move(records.counts), at::kInt);
  return keys_of(std::move(records), std::move(counts));
}

/// counts, steps, vectors, states
using RecordTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

RecordTensors export_records(Table const& table, KeyTensors const& keys) {
  auto records = table.export_records(keys.view());
  auto const size = static_cast<std::int64_t>(records.ids.size());
  return {tensor_of(std::move(records.counts), at::kInt), tensor_of(std::move(records.steps), at::kInt),
          tensor_of(std::move(records.vectors), at::kFloat).view({size, static_cast<std::int64_t>(table.dim())}),
          tensor_of(std::move(records.states), at::kFloat).view({size, static_cast<std::int64_t>(table.state_size())})};
}

template <class T>
std::vector<T> vector_of(at::Tensor const& tensor, at::ScalarType type, char const* name) {
  auto const span = span_of<T>(tensor, type, name);
  return {span.begin(), span.end()};
}

at::Tensor import_records(Table& table, KeyTensors const& keys, RecordTensors const& tensors) {
  auto const view = keys.view();
  auto const& [counts, steps, vectors, states] = tensors;
  Records records{.ids = {view.ids.begin(), view.ids.end()},
                  .tables = {view.tables.begin(), view.tables.end()},
                  .counts = vector_of<std::uint32_t>(counts, at::kInt, "counts"),
                  .steps = vector_of<std::uint32_t>(steps, at::kInt, "steps"),
                  .vectors = vector_of<float>(vectors, at::kFloat, "vectors"),
                  .states = vector_of<float>(states, at::kFloat, "states")};
  if (view.tables.empty()) records.tables.assign(view.size(), view.table);
  auto statuses = empty(keys.ids.numel(), at::kByte);
  table.import_records(records, statuses_of(statuses));
  return statuses;
}

std::map<std::string, std::size_t> size(Table const& table) {
  auto const size = table.size();
  return {{"rows", size.rows},
          {"cold_rows", size.cold_rows},
          {"pending", size.pending},
          {"key_bytes", size.key_bytes},
          {"row_bytes", size.row_bytes}};
}

std::map<std::string, std::uint64_t> statistics(Table const& table) {
  auto const counts = table.statistics();
  return {{"inserted", counts.inserted}, {"erased", counts.erased},   {"evicted", counts.evicted},
          {"expired", counts.expired},   {"refused", counts.refused}, {"forgotten", counts.forgotten},
          {"promoted", counts.promoted}, {"demoted", counts.demoted}, {"dropped_gradients", counts.dropped_gradients}};
}

void define_table(py::module_& module) {
  py::class_<Workers>(module, "Workers")
      .def(py::init([](int num_threads) { return Workers{make_workers(num_threads)}; }), py::arg("num_threads"));
  py::class_<Initializer>(module, "Initializer")
      .def_static("constant", &Initializer::constant)
      .def_static("uniform", &Initializer::uniform)
      .def_static("normal", &Initializer::normal);
  py::class_<kernels::OptimizerOptions>(module, "OptimizerOptions")
      .def(py::init(&make_optimizer), py::kw_only(), py::arg("kind"), py::arg("eps"), py::arg("beta1"),
           py::arg("beta2"), py::arg("initial_accumulator_value"), py::arg("weight_decay"),
           py::arg("decoupled_weight_decay"));
  py::class_<KeyTensors>(module, "Keys")
      .def(py::init<at::Tensor, std::optional<at::Tensor>, std::int64_t, std::optional<at::Tensor>>(), py::arg("ids"),
           py::arg("tables") = py::none(), py::kw_only(), py::arg("table") = 0, py::arg("counts") = py::none())
      .def_readonly("ids", &KeyTensors::ids)
      .def_readonly("tables", &KeyTensors::tables)
      .def_readonly("table", &KeyTensors::table)
      .def_readonly("counts", &KeyTensors::counts)
      .def("__len__", [](KeyTensors const& keys) { return keys.ids.numel(); });
  py::class_<Table>(module, "Table")
      .def(py::init(&make_table), py::kw_only(), py::arg("dim"), py::arg("initializer"), py::arg("optimizer"),
           py::arg("max_rows"), py::arg("eviction"), py::arg("high_water"), py::arg("low_water"),
           py::arg("time_to_live"), py::arg("min_count"), py::arg("max_pending"), py::arg("hot_count"),
           py::arg("workers"))
      .def_property_readonly("dim", &Table::dim)
      .def_property_readonly("state_size", &Table::state_size)
      .def_property_readonly("generation", &Table::generation)
      .def("size", &size)
      .def("statistics", &statistics)
      .def("begin_step", &Table::begin_step, WithoutGil())
      .def(
          "find",
          [](Table const& table, KeyTensors const& keys) {
            return look_up(keys, [&](auto&&... arguments) { table.find(arguments...); });
          },
          WithoutGil())
      .def(
          "find_or_insert",
          [](Table& table, KeyTensors const& keys) {
            return look_up(keys, [&](auto&&... arguments) { table.find_or_insert(arguments...); });
          },
          WithoutGil())
      .def("gather", &gather, WithoutGil())
      .def("update", &update, WithoutGil(), py::arg("keys"), py::arg("rows"), py::arg("gradients"), py::kw_only(),
           py::arg("lr"), py::arg("step"))
      .def("insert_or_assign", &insert_or_assign, WithoutGil())
      .def(
          "erase", [](Table& table, KeyTensors const& keys) { table.erase(keys.view()); }, WithoutGil())
      .def("evict", &Table::evict, WithoutGil())
      .def("halve_counts", &Table::halve_counts, WithoutGil())
      .def("clear", &Table::clear, WithoutGil())
      .def("list", &list, WithoutGil())
      .def("list_pending", &list_pending, WithoutGil())
      .def("export_records", &export_records, WithoutGil())
      .def("import_records", &import_records, WithoutGil());
}

// Duplicates and routes

struct Deduplication {
  Deduplication(UniqueKeys the_unique, KeyTensors const& keys)
      : unique(std::make_shared<UniqueKeys>(std::move(the_unique))), has_tables(keys.tables.has_value()) {}
  std::shared_ptr<UniqueKeys const> unique;
  bool has_tables;  ///< Also if there are no keys.

  [[nodiscard]] KeyTensors keys() const {
    std::optional<at::Tensor> tables;
    if (has_tables) tables = view_of(unique->tables, unique, at::kInt);
    return {view_of(unique->ids, unique, at::kLong), tables, unique->table, view_of(unique->counts, unique, at::kInt)};
  }
};

Bags bags_of(std::optional<at::Tensor> const& offsets, std::optional<at::Tensor> const& weights) {
  Bags bags;
  if (offsets) bags.offsets = span_of<std::int64_t>(*offsets, at::kLong, "offsets");
  if (weights) bags.weights = floats_of(*weights, "weights");
  return bags;
}

std::int64_t expect_matrix(at::Tensor const& values, char const* name) {
  comm::expects(values.dim() == 2,
                std::string(name) + " must have two dimensions, not " + std::to_string(values.dim()));
  return values.size(1);
}

at::Tensor hand_out(Deduplicator& deduplicator, Deduplication const& batch, at::Tensor const& values,
                    std::optional<at::Tensor> const& offsets, std::optional<at::Tensor> const& weights) {
  auto const bags = bags_of(offsets, weights);
  auto const num_bags = bags.offsets.empty() ? batch.unique->numbers.size() : bags.offsets.size() - 1;
  auto out = at::empty({static_cast<std::int64_t>(num_bags), expect_matrix(values, "values")}, at::kFloat);
  deduplicator.hand_out(*batch.unique, bags, floats_of(values, "values"), span_of<float>(out, at::kFloat, "out"));
  return out;
}

at::Tensor add_up(Deduplicator& deduplicator, Deduplication const& batch, at::Tensor const& values,
                  std::optional<at::Tensor> const& offsets, std::optional<at::Tensor> const& weights) {
  auto sums = at::empty({static_cast<std::int64_t>(batch.unique->size()), expect_matrix(values, "values")}, at::kFloat);
  deduplicator.add_up(*batch.unique, bags_of(offsets, weights), floats_of(values, "values"),
                      span_of<float>(sums, at::kFloat, "sums"));
  return sums;
}

std::pair<at::Tensor, std::vector<std::int64_t>> route_of(KeyTensors const& keys, std::uint32_t num_ranks) {
  auto way = route(keys.view(), num_ranks);
  return {tensor_of(std::move(way.order), at::kInt), std::move(way.counts)};
}

/// (K,) int32: the virtual bucket of each key.
at::Tensor buckets_of(KeyTensors const& keys) {
  auto const view = keys.view();
  auto buckets = empty(keys.ids.numel(), at::kInt);
  auto const out = span_of<std::uint32_t>(buckets, at::kInt, "buckets");
  for (std::size_t i = 0; i < view.size(); ++i) out[i] = virtual_bucket_of(hash_of(view[i]));
  return buckets;
}

void define_deduplicator(py::module_& module) {
  py::class_<Deduplication>(module, "UniqueKeys")
      .def_property_readonly("keys", &Deduplication::keys)
      .def_property_readonly(
          "numbers", [](Deduplication const& batch) { return view_of(batch.unique->numbers, batch.unique, at::kInt); })
      .def("__len__", [](Deduplication const& batch) { return batch.unique->size(); });
  py::class_<Deduplicator>(module, "Deduplicator")
      .def(py::init([](Workers const& workers) { return make_cpu_deduplicator(workers.pool); }), py::arg("workers"))
      .def(
          "deduplicate",
          [](Deduplicator& deduplicator, KeyTensors const& keys) {
            return Deduplication(deduplicator.deduplicate(keys.view()), keys);
          },
          WithoutGil())
      .def("hand_out", &hand_out, WithoutGil(), py::arg("unique"), py::arg("values"), py::kw_only(),
           py::arg("offsets") = py::none(), py::arg("weights") = py::none())
      .def("add_up", &add_up, WithoutGil(), py::arg("unique"), py::arg("values"), py::kw_only(),
           py::arg("offsets") = py::none(), py::arg("weights") = py::none());
  module.def(
      "take_as_unique", [](KeyTensors const& keys) { return Deduplication(take_as_unique(keys.view()), keys); },
      WithoutGil());
  module.def("route", &route_of, WithoutGil());
  module.def("buckets_of", &buckets_of, WithoutGil());
  module.def("first_bucket_of", &first_bucket_of, py::arg("rank"), py::arg("num_ranks"));
  module.attr("ROUTING_VERSION") = kRoutingVersion;
  module.attr("NUM_VIRTUAL_BUCKETS") = kNumVirtualBuckets;
}

}  // namespace

PYBIND11_MODULE(_embedding, module) {
  module.attr("torch_version") = TORCH_VERSION;
  py::enum_<KeyStatus>(module, "KeyStatus")
      .value("FOUND", KeyStatus::kFound)
      .value("INSERTED", KeyStatus::kInserted)
      .value("ABSENT", KeyStatus::kAbsent)
      .value("PENDING", KeyStatus::kPending)
      .value("NO_ROOM", KeyStatus::kNoRoom);
  define_table(module);
  define_deduplicator(module);
}

}  // namespace headway::embedding
