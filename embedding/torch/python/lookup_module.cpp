// SPDX-License-Identifier: Apache-2.0

// The lookup of a collection for Python: headway._embedding.TableLookup.

#include "devices.hpp"
#include "headway/embedding/table_settings.hpp"
#include "lookup_registry.hpp"
#include "python_types.hpp"
#include "tensor_lookup.hpp"

#include <pybind11/stl.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <map>
#include <string>
#include <vector>

namespace headway::embedding {

namespace {

/// @param tables merged tables: each holds the tables with the ids table_ids[i]; they share rows and exchanges
/// @param hides_unknown (tables) in eval() mode, ids without a row read as zeros
/// @param names, feature_tables, poolings (features) name, table id, and sum, mean or None
/// @param dedup stage that removes duplicate keys, see dedup_of()
/// @param by_feature one output per feature; false: one per merged table
c10::intrusive_ptr<TensorLookup> make_lookup(std::vector<c10::intrusive_ptr<TensorTable>> const& tables,
                                             std::vector<std::vector<std::uint32_t>> const& table_ids,
                                             std::vector<bool> const& hides_unknown, std::vector<std::string> names,
                                             std::vector<std::uint32_t> feature_tables,
                                             std::vector<std::optional<std::string>> const& poolings,
                                             c10d::ProcessGroup* group, std::string const& dedup,
                                             PythonThreadPool const& thread_pool, at::Device device, bool by_feature) {
  if (table_ids.size() != tables.size() || hides_unknown.size() != tables.size()) {
    throw py::value_error("table_ids and hides_unknown need one element for each table");
  }
  std::vector<LookedUpTable> merged;
  for (std::size_t i = 0; i < tables.size(); ++i) {
    merged.push_back({.table = tables[i], .numbers = table_ids[i], .reads_unknown_as_zeros = hides_unknown[i]});
  }
  std::vector<Pooling> kinds;
  for (auto const& pooling : poolings) kinds.push_back(pooling_of(pooling));
  auto owned = group == nullptr ? c10::intrusive_ptr<c10d::ProcessGroup>()
                                : c10::intrusive_ptr<c10d::ProcessGroup>::unsafe_reclaim_from_nonowning(group);
  py::gil_scoped_release const without_gil;
  return c10::make_intrusive<TensorLookup>(std::move(merged), std::move(names), std::move(feature_tables),
                                           std::move(kinds), owned, dedup_of(dedup), thread_pool.pool, resolve(device),
                                           by_feature);
}

/// Keys and bytes of this rank since the tables were made, by the names of the fields of Traffic (sharded_table.hpp).
std::map<std::string, std::uint64_t> traffic(TensorLookup const& lookup) {
  auto const counts = lookup.traffic();
  return {{"keys", counts.keys},
          {"keys_routed", counts.keys_routed},
          {"keys_received", counts.keys_received},
          {"keys_found", counts.keys_found},
          {"id_bytes", counts.id_bytes},
          {"vector_bytes", counts.vector_bytes},
          {"gradient_bytes", counts.gradient_bytes},
          {"keys_ahead", counts.keys_ahead},
          {"collisions", counts.collisions}};
}

}  // namespace

void define_lookup(py::module_& module) {
  py::class_<TensorBatch, TensorLookup::BatchPtr>(module, "LookupBatch");
  py::class_<TensorLookup, c10::intrusive_ptr<TensorLookup>>(module, "TableLookup")
      .def(py::init(&make_lookup), py::kw_only(), py::arg("tables"), py::arg("table_ids"), py::arg("hides_unknown"),
           py::arg("names"), py::arg("feature_tables"), py::arg("poolings"), py::arg("group").none(true),
           py::arg("dedup"), py::arg("thread_pool"), py::arg("device"), py::arg("by_feature") = true)
      .def(
          "begin",
          [](TensorLookup& lookup, std::vector<at::Tensor> const& ids, std::vector<at::Tensor> const& lengths,
             std::vector<std::optional<at::Tensor>> const& weights, bool inserts, bool evaluates, bool counts_refused) {
            return lookup.begin(ids, lengths, weights,
                                {.inserts = inserts, .evaluates = evaluates, .counts_refused = counts_refused});
          },
          WithoutGil(), py::arg("ids"), py::arg("lengths"), py::arg("weights"), py::kw_only(), py::arg("inserts"),
          py::arg("evaluates"), py::arg("counts_refused"))
      .def("finish", &TensorLookup::finish, WithoutGil(), py::arg("batch"), py::arg("anchors"))
      .def("start_keys", &TensorLookup::start_keys, WithoutGil())
      .def("look_up", &TensorLookup::look_up, WithoutGil(), py::arg("batch"), py::kw_only(), py::arg("inserts"))
      .def("start_embeddings", &TensorLookup::start_embeddings, WithoutGil())
      .def("take_embeddings", &TensorLookup::take_embeddings, WithoutGil())
      .def("own_refused", &TensorLookup::own_refused, WithoutGil())
      .def("start_gradients", &TensorLookup::start_gradients, WithoutGil(), py::arg("batch"), py::arg("gradients"),
           py::kw_only(), py::arg("factor"))
      .def("update", &TensorLookup::update, WithoutGil(), py::arg("batch"), py::kw_only(), py::arg("steps"),
           py::arg("rates"))
      .def("read_ahead", &TensorLookup::read_ahead, WithoutGil(), py::arg("next"), py::arg("present"), py::kw_only(),
           py::arg("step"), py::arg("oldest_in_use"))
      .def("drain", &TensorLookup::drain, WithoutGil())
      .def("has_deferred", &TensorLookup::has_deferred, WithoutGil())
      .def("forget_ahead", &TensorLookup::forget_ahead, WithoutGil())
      .def("has_ahead", &TensorLookup::has_ahead, WithoutGil())
      .def("num_refused", &TensorLookup::num_refused, WithoutGil())
      .def("replace_tables", &TensorLookup::replace_tables, WithoutGil())
      .def("has_gradients", &TensorLookup::has_gradients, WithoutGil())
      .def("new_gradients", &TensorLookup::new_gradients, WithoutGil())
      .def("expect_unchanged", &TensorLookup::expect_unchanged, WithoutGil())
      .def("apply", &TensorLookup::apply, WithoutGil(), py::kw_only(), py::arg("step"), py::arg("rates"),
           py::arg("divisors"))
      .def("drop", &TensorLookup::drop, WithoutGil())
      .def("scale", &TensorLookup::scale, WithoutGil())
      .def("norm", &TensorLookup::norm, WithoutGil())
      .def("traffic", &traffic, WithoutGil())
      .def("time_waits", &TensorLookup::time_waits, WithoutGil())
      .def("waited_s", &TensorLookup::waited_s, WithoutGil())
      .def("register_as", [](c10::intrusive_ptr<TensorLookup> const& lookup,
                             std::string const& name) { register_lookup(name, lookup); })
      // The same object as a custom class of torch, for torch.ops and torch.export.
      .def("script_object",
           [](c10::intrusive_ptr<TensorLookup> const& lookup) { return torch::jit::toPyObject(c10::IValue(lookup)); });
}

}  // namespace headway::embedding
