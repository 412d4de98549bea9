// SPDX-License-Identifier: Apache-2.0

// headway._embedding: tables of embeddings for Python. See python/headway/_embedding.pyi for its types.
//
// Calls that compute release the GIL (WithoutGil), so that Python threads, such as that of a data loader, run
// meanwhile. Short properties keep it.

#include "devices.hpp"
#include "headway/base/thread_pool.hpp"
#include "headway/embedding/record_file.hpp"
#include "headway/embedding/routing.hpp"
#include "headway/embedding/table_settings.hpp"
#include "interpreter.hpp"
#include "process_group/rank_buffers.hpp"
#include "python_types.hpp"
#include "tensor_deduplicator.hpp"
#include "tensor_table.hpp"
#include "tensors.hpp"
#include "torch_headers.hpp"

#include <pybind11/stl.h>
#include <torch/version.h>

#include <sys/syscall.h>
#include <unistd.h>

#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

namespace py = pybind11;

namespace headway::embedding {

namespace {

kernels::OptimizerOptions make_optimizer(std::string const& kind, double eps, double beta1, double beta2,
                                         double initial_accumulator_value, double weight_decay,
                                         bool decoupled_weight_decay) {
  kernels::OptimizerOptions const options{
      .kind = optimizer_of(kind),
      .epsilon = eps,
      .beta1 = beta1,
      .beta2 = beta2,
      .initial_accumulator = initial_accumulator_value,
      .weight_decay = weight_decay,
      .decay = decoupled_weight_decay ? kernels::WeightDecay::kDecoupled : kernels::WeightDecay::kL2};
  return kernels::RowOptimizer(options).options();  // The constructor throws if an option is out of range.
}

/// Warns that `old_name` has become `new_name`, in the words of python/headway/_deprecation.py.
/// @throws py::error_already_set if warnings are errors
void warn_deprecated(std::string const& old_name, std::string const& new_name) {
  auto const message = old_name + " is deprecated and will be removed: use " + new_name;
  if (PyErr_WarnEx(PyExc_DeprecationWarning, message.c_str(), 1) != 0) throw py::error_already_set();
}

c10::intrusive_ptr<TensorTable> make_table(std::size_t dim, Initializer const& initializer,
                                           kernels::OptimizerOptions const& optimizer,
                                           std::optional<std::size_t> max_rows, std::string eviction,
                                           std::optional<std::size_t> high_water, std::optional<std::size_t> low_water,
                                           std::uint32_t time_to_live, std::uint32_t min_count,
                                           std::optional<std::size_t> max_pending, std::uint32_t hot_count,
                                           PythonThreadPool const& thread_pool, std::optional<at::Device> device,
                                           std::optional<std::size_t> eviction_batch) {
  TableSettings const settings{.dim = dim,
                               .initializer = initializer,
                               .optimizer = optimizer,
                               .max_rows = max_rows,
                               .eviction = std::move(eviction),
                               .high_water = high_water,
                               .low_water = low_water,
                               .eviction_batch = eviction_batch,
                               .time_to_live = time_to_live,
                               .min_count = min_count,
                               .max_pending = max_pending,
                               .hot_count = hot_count,
                               .thread_pool = thread_pool.pool};
  return c10::make_intrusive<TensorTable>(options_of(settings, resolve(device).is_cpu()), resolve(device));
}

std::map<std::string, std::size_t> size(TensorTable const& table) {
  auto const size = table.table().size();
  return {{"rows", size.rows},
          {"cold_rows", size.cold_rows},
          {"pending", size.pending},
          {"key_bytes", size.key_bytes},
          {"row_bytes", size.row_bytes}};
}

/// The counters of TableStatistics, which table.hpp explains.
std::map<std::string, std::uint64_t> statistics(TensorTable const& table) {
  auto const counts = table.table().statistics();
  return {{"inserted", counts.inserted}, {"erased", counts.erased},   {"evicted", counts.evicted},
          {"expired", counts.expired},   {"refused", counts.refused}, {"forgotten", counts.forgotten},
          {"promoted", counts.promoted}, {"demoted", counts.demoted}, {"dropped_gradients", counts.dropped_gradients}};
}

/// A fragment of records in the order of the fields of Records (python/headway/embedding/table_records.py). `updates`
/// counts the optimizer steps of the table.
using FragmentTuple = std::tuple<std::uint32_t, std::uint64_t, std::pair<std::uint32_t, std::uint32_t>, std::uint32_t,
                                 at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

FragmentTensors fragment_of(FragmentTuple const& tuple) {
  return std::apply([](auto const&... fields) { return FragmentTensors{fields...}; }, tuple);
}

FragmentTuple tuple_of(FragmentTensors const& records) {
  return {records.routing_version, records.updates, records.buckets,    records.table,  records.ids,
          records.counts,          records.steps,   records.embeddings, records.states, records.pending_ids,
          records.pending_counts};
}

/// Wraps a member function of Table for TensorTable. Functions that are not const count as changes. Example:
/// of_table(&Table::clear) is a function of a TensorTable that pybind11 can bind.
template <class Result, class... Arguments>
auto of_table(Result (Table::*function)(Arguments...)) {
  return [function](TensorTable& table, Arguments... arguments) {
    return table.change([&](Table& changed) { return (changed.*function)(arguments...); });
  };
}
template <class Result>
auto of_table(Result (Table::*function)() const) {
  return [function](TensorTable const& table) { return (table.table().*function)(); };
}

void define_table(py::module_& module) {
  py::class_<PythonThreadPool>(module, "ThreadPool")
      .def(py::init([](int num_threads) { return PythonThreadPool{std::make_shared<base::ThreadPool>(num_threads)}; }),
           py::arg("num_threads"));
  py::class_<Initializer>(module, "Initializer")
      .def_static("constant", &Initializer::constant)
      .def_static("uniform", &Initializer::uniform)
      .def_static("normal", &Initializer::normal);
  py::class_<kernels::OptimizerOptions>(module, "OptimizerOptions")
      .def(py::init(&make_optimizer), py::kw_only(), py::arg("kind"), py::arg("eps"), py::arg("beta1"),
           py::arg("beta2"), py::arg("initial_accumulator_value"), py::arg("weight_decay"),
           py::arg("decoupled_weight_decay"));
  // num_known: a tensor that holds how many of the keys are valid; the rest is room.
  py::class_<KeyTensors>(module, "Keys")
      .def(py::init<at::Tensor, std::optional<at::Tensor>, std::int64_t, std::optional<at::Tensor>, bool,
                    std::optional<at::Tensor>>(),
           py::arg("ids"), py::arg("tables") = py::none(), py::kw_only(), py::arg("table") = 0,
           py::arg("counts") = py::none(), py::arg("are_unique") = false, py::arg("num_known") = py::none())
      .def_readonly("ids", &KeyTensors::ids)
      .def_readonly("tables", &KeyTensors::tables)
      .def_readonly("table", &KeyTensors::table)
      .def_readonly("counts", &KeyTensors::counts)
      .def_readonly("are_unique", &KeyTensors::are_unique)
      .def_readonly("num_known", &KeyTensors::num_known)
      .def("to", &KeyTensors::to, WithoutGil())
      .def("__len__", [](KeyTensors const& keys) { return keys.ids.numel(); });
  py::class_<TensorTable, c10::intrusive_ptr<TensorTable>>(module, "Table")
      .def(py::init(&make_table), py::kw_only(), py::arg("dim"), py::arg("initializer"), py::arg("optimizer"),
           py::arg("max_rows"), py::arg("eviction"), py::arg("high_water"), py::arg("low_water"),
           py::arg("time_to_live"), py::arg("min_count"), py::arg("max_pending"), py::arg("hot_count"),
           py::arg("thread_pool"), py::arg("device") = py::none(), py::arg("eviction_batch") = py::none())
      .def_property_readonly("device", &TensorTable::device)
      .def_property_readonly("dim", of_table(&Table::dim))
      .def_property_readonly("state_size", of_table(&Table::state_size))
      .def_property_readonly("generation", of_table(&Table::generation))
      .def("size", &size, WithoutGil())
      .def("statistics", &statistics, WithoutGil())
      .def("num_changes", &TensorTable::num_changes)
      .def("begin_step", of_table(&Table::begin_step), WithoutGil())
      .def("resume_step", of_table(&Table::resume_step), WithoutGil())
      .def("find", &TensorTable::find, WithoutGil())
      .def("find_or_insert", &TensorTable::find_or_insert, WithoutGil())
      .def("gather", &TensorTable::gather, WithoutGil())
      .def("update", &TensorTable::update, WithoutGil(), py::arg("keys"), py::arg("rows"), py::arg("gradients"),
           py::kw_only(), py::arg("lr"), py::arg("step"))
      .def("insert_or_assign", &TensorTable::insert_or_assign, WithoutGil())
      .def("erase", &TensorTable::erase, WithoutGil())
      .def("evict", of_table(&Table::evict), WithoutGil())
      .def("halve_counts", of_table(&Table::halve_counts), WithoutGil())
      .def("clear", of_table(&Table::clear), WithoutGil())
      .def("list", &TensorTable::list, WithoutGil())
      .def("list_pending", &TensorTable::list_pending, WithoutGil())
      .def("export_records", &TensorTable::export_records, WithoutGil())
      .def(
          "import_records",
          [](TensorTable& table, FragmentTuple const& records, bool pending, std::uint32_t rank,
             std::uint32_t num_ranks) { table.import_records(fragment_of(records), pending, rank, num_ranks); },
          WithoutGil(), py::arg("records"), py::kw_only(), py::arg("pending"), py::arg("rank"), py::arg("num_ranks"))
      .def("evict_beyond_limit", of_table(&Table::evict_beyond_limit), WithoutGil());
}

// Records in files, and in the state_dict() of modules

/// A block of a record file, in the order of the fields of RecordBlock; and a source, a block with its file and widths.
using BlockTuple =
    std::tuple<std::uint64_t, std::uint64_t, std::uint32_t, bool, std::uint64_t, std::uint32_t, std::uint32_t>;
using SourceTuple = std::tuple<std::string, BlockTuple, std::size_t, std::size_t>;  ///< Path, block, dim, state_size.
/// Table, ids of the tables whose records it takes, and a value that replaces the optimizer state of the records.
using TargetTuple = std::tuple<TensorTable*, std::vector<std::uint32_t>, std::optional<float>>;

std::vector<BlockTuple> finish(RecordFileWriter& writer) {
  std::vector<BlockTuple> result;
  for (auto const& block : writer.finish()) {
    result.emplace_back(block.offset, block.num_bytes, block.crc32, block.are_pending, block.num_keys,
                        block.first_bucket, block.end_bucket);
  }
  return result;
}

RecordSource source_of(SourceTuple const& tuple) {
  auto const& [path, block, dim, state_size] = tuple;
  auto const& [offset, num_bytes, crc32, are_pending, num_keys, first_bucket, end_bucket] = block;
  return {.path = path,
          .block = {.offset = offset,
                    .num_bytes = num_bytes,
                    .crc32 = crc32,
                    .are_pending = are_pending,
                    .num_keys = num_keys,
                    .first_bucket = first_bucket,
                    .end_bucket = end_bucket},
          .dim = dim,
          .state_size = state_size};
}

/// Fills `targets`, and calls `load` inside TensorTable::change() of each table: num_changes() is odd meanwhile.
void load_into(std::span<TargetTuple const> tuples, std::vector<RecordTarget>& targets,
               std::function<void()> const& load) {
  if (tuples.empty()) return load();
  auto const& [table, table_ids, initial_state] = tuples.front();
  if (table == nullptr) throw py::type_error("records are loaded into tables, and not into None");
  table->change([&](Table& changed) {
    targets.push_back({.table = &changed, .table_ids = table_ids, .initial_state = initial_state});
    load_into(tuples.subspan(1), targets, load);
  });
}

void define_records(py::module_& module) {
  py::class_<RecordFileWriter>(module, "RecordFileWriter")
      .def(py::init<std::string, std::size_t>(), py::arg("path"), py::kw_only(), py::arg("records_per_block"))
      .def(
          "write",
          [](RecordFileWriter& writer, TensorTable const& table, bool pending, std::uint32_t first_bucket,
             std::uint32_t end_bucket) { writer.write(table.table(), pending, first_bucket, end_bucket); },
          WithoutGil(), py::arg("table"), py::kw_only(), py::arg("pending"), py::arg("first_bucket"),
          py::arg("end_bucket"))
      .def_property_readonly("num_blocks", &RecordFileWriter::num_blocks)
      .def("finish", &finish, WithoutGil());
  module.def("bucket_ranges", &bucket_ranges, py::arg("num_keys"), py::arg("records_per_block"));
  module.def(
      "encode_records", [](FragmentTuple const& records) { return encode(fragment_of(records)); }, WithoutGil());
  module.def(
      "decode_records", [](at::Tensor const& bytes) { return tuple_of(decode(bytes)); }, WithoutGil());
  py::register_local_exception_translator([](std::exception_ptr error) {
    try {
      if (error) std::rethrow_exception(error);
    } catch (NoRoomForRecords const& no_room) {
      PyErr_SetString(PyExc_MemoryError, no_room.what());
    }
  });
  module.def(
      "load_records",
      [](std::vector<SourceTuple> const& sources, std::vector<TargetTuple> const& targets, std::uint32_t rank,
         std::uint32_t num_ranks) {
        std::vector<RecordSource> all;
        for (auto const& source : sources) all.push_back(source_of(source));
        std::vector<RecordTarget> all_targets;
        load_into(targets, all_targets, [&] { load_records(all, all_targets, rank, num_ranks); });
      },
      WithoutGil(), py::arg("sources"), py::arg("targets"), py::kw_only(), py::arg("rank"), py::arg("num_ranks"));
}

// Deduplication and routing

std::unique_ptr<TensorDeduplicator> make_deduplicator(at::Device device, PythonThreadPool const& thread_pool = {}) {
  return device.is_cpu() ? make_host_deduplicator(thread_pool.pool) : make_device_deduplicator(device);
}

/// (K,) int32: the virtual bucket of each key. Each rank owns a range of virtual buckets.
at::Tensor buckets_of(KeyTensors const& keys) {
  auto const view = keys.view(at::kCPU);
  auto buckets = empty(keys.ids.numel(), at::kInt, at::kCPU);
  auto const out = span_of<std::uint32_t>(buckets, at::kInt, at::kCPU, "buckets");
  for (std::size_t i = 0; i < view.size(); ++i) out[i] = virtual_bucket_of(hash_of(view[i]));
  return buckets;
}

void define_deduplicator(py::module_& module) {
  py::class_<UniqueTensors>(module, "UniqueKeys")
      .def_property_readonly("keys", &UniqueTensors::keys)
      .def_readonly("inverse_indices", &UniqueTensors::inverse_indices)
      .def_property_readonly("numbers",
                             [](UniqueTensors const& unique) {
                               warn_deprecated("UniqueKeys.numbers", "inverse_indices");
                               return unique.inverse_indices;
                             })
      .def("narrow", &UniqueTensors::narrow)
      .def("__len__", &UniqueTensors::wait_for_size, WithoutGil());
  auto const pass_bags = [](auto function) {
    return [function](TensorDeduplicator& deduplicator, UniqueTensors const& unique, at::Tensor const& values,
                      std::optional<at::Tensor> const& offsets, std::optional<at::Tensor> const& weights) {
      return (deduplicator.*function)(unique, {offsets, weights}, values);
    };
  };
  // Functions under an old name. They warn while they still hold the GIL.
  auto const pass_bags_deprecated = [](auto function, char const* old_name, char const* new_name) {
    return [=](TensorDeduplicator& deduplicator, UniqueTensors const& unique, at::Tensor const& values,
               std::optional<at::Tensor> const& offsets, std::optional<at::Tensor> const& weights) {
      warn_deprecated(std::string("Deduplicator.") + old_name, new_name);
      py::gil_scoped_release const release;
      return (deduplicator.*function)(unique, {offsets, weights}, values);
    };
  };
  py::class_<TensorDeduplicator>(module, "Deduplicator")
      .def(py::init([](PythonThreadPool const& thread_pool, std::optional<at::Device> device) {
             return make_deduplicator(resolve(device), thread_pool);
           }),
           py::arg("thread_pool"), py::arg("device") = py::none())
      .def(py::init([](PythonThreadPool const& workers, std::optional<at::Device> device) {
             warn_deprecated("Deduplicator(workers=)", "thread_pool=");
             return make_deduplicator(resolve(device), workers);
           }),
           py::kw_only(), py::arg("workers"), py::arg("device") = py::none())
      .def("deduplicate", &TensorDeduplicator::deduplicate, WithoutGil())
      .def(
          "sort_by_owner",
          [](TensorDeduplicator& deduplicator, UniqueTensors const& unique, std::uint32_t num_ranks) {
            auto [order, counts] = deduplicator.route(unique.keys(), num_ranks);
            return std::pair(deduplicator.reorder(unique, order), std::move(counts));
          },
          WithoutGil())
      .def("expand", pass_bags(&TensorDeduplicator::expand), WithoutGil(), py::arg("unique"), py::arg("values"),
           py::kw_only(), py::arg("offsets") = py::none(), py::arg("weights") = py::none())
      .def("reduce", pass_bags(&TensorDeduplicator::reduce), WithoutGil(), py::arg("unique"), py::arg("values"),
           py::kw_only(), py::arg("offsets") = py::none(), py::arg("weights") = py::none())
      .def("hand_out", pass_bags_deprecated(&TensorDeduplicator::expand, "hand_out()", "expand()"), py::arg("unique"),
           py::arg("values"), py::kw_only(), py::arg("offsets") = py::none(), py::arg("weights") = py::none())
      .def("add_up", pass_bags_deprecated(&TensorDeduplicator::reduce, "add_up()", "reduce()"), py::arg("unique"),
           py::arg("values"), py::kw_only(), py::arg("offsets") = py::none(), py::arg("weights") = py::none());
  module.def(
      "from_unique", [](KeyTensors const& keys) { return make_deduplicator(keys.device())->from_unique(keys); },
      WithoutGil());
  module.def(
      "reorder",
      [](UniqueTensors const& unique, at::Tensor const& order) {
        return make_deduplicator(unique.room.device())->reorder(unique, order);
      },
      WithoutGil());
  module.def(
      "route",
      [](KeyTensors const& keys, std::uint32_t num_ranks) {
        return make_deduplicator(keys.device())->route(keys, num_ranks);
      },
      WithoutGil());
  module.def("all_to_all_arguments", &all_to_all_arguments, WithoutGil());
  module.def("by_table", &by_table, WithoutGil());
  module.def("buckets_of", &buckets_of, WithoutGil());
  module.def("first_bucket_of", &first_bucket_of, py::arg("rank"), py::arg("num_ranks"));
  module.attr("ROUTING_VERSION") = kRoutingVersion;
  module.attr("NUM_VIRTUAL_BUCKETS") = kNumVirtualBuckets;
}

// Functions of the interpreter that libheadway_operators calls

std::shared_ptr<void> release_lock() {
  if (!Py_IsInitialized() || !PyGILState_Check()) return nullptr;
  return std::make_shared<py::gil_scoped_release>();
}

/// Does nothing on other threads than the main one: Python runs signal handlers only there.
void run_signal_handlers() {
  if (static_cast<pid_t>(syscall(SYS_gettid)) != getpid() || !Py_IsInitialized()) return;
  py::gil_scoped_acquire const acquired;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

}  // namespace

PYBIND11_MODULE(_embedding, module) {
  interpreter() = {.release_lock = &release_lock, .run_signal_handlers = &run_signal_handlers};
  module.attr("torch_version") = TORCH_VERSION;
  py::enum_<KeyStatus>(module, "KeyStatus")
      .value("FOUND", KeyStatus::kFound)
      .value("INSERTED", KeyStatus::kInserted)
      .value("ABSENT", KeyStatus::kAbsent)
      .value("PENDING", KeyStatus::kPending)
      .value("NO_ROOM", KeyStatus::kNoRoom);
  define_table(module);
  define_records(module);
  define_deduplicator(module);
  define_lookup(module);
}

}  // namespace headway::embedding
