// SPDX-License-Identifier: Apache-2.0

// Types and conversions that the files of the Python module share.

#pragma once

#include "headway/base/thread_pool.hpp"
#include "headway/embedding/features.hpp"
#include "torch_headers.hpp"

#include <map>
#include <memory>
#include <optional>
#include <string>

namespace headway::embedding {

namespace py = pybind11;

/// For calls that compute: they release the GIL.
using WithoutGil = py::call_guard<py::gil_scoped_release>;

/// A thread pool, as a Python object.
struct PythonThreadPool {
  std::shared_ptr<base::ThreadPool> pool;
};

/// Looks up an enumerator by its Python name. @throws ValueError with `what` if there is none
template <class Value>
Value named(std::map<std::string, Value> const& values, std::string const& name, char const* what) {
  auto const found = values.find(name);
  if (found == values.end()) throw py::value_error(std::string("there is no ") + what + " '" + name + "'");
  return found->second;
}

inline Pooling make_pooling(std::optional<std::string> const& name) {
  static std::map<std::string, Pooling> const poolings{{"sum", Pooling::kSum}, {"mean", Pooling::kMean}};
  return name ? named(poolings, *name, "pooling") : Pooling::kNone;
}

/// Adds the classes TableLookup and LookupBatch to the module.
void define_lookup(py::module_& module);

}  // namespace headway::embedding
