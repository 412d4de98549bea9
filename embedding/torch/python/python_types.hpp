// SPDX-License-Identifier: Apache-2.0

// Types and conversions that the files of the Python module share.

#pragma once

#include "headway/base/thread_pool.hpp"
#include "torch_headers.hpp"

#include <memory>

namespace headway::embedding {

namespace py = pybind11;

/// For calls that compute: they release the GIL.
using WithoutGil = py::call_guard<py::gil_scoped_release>;

/// A thread pool, as a Python object.
struct PythonThreadPool {
  std::shared_ptr<base::ThreadPool> pool;
};

/// Adds the classes TableLookup and LookupBatch to the module.
void define_lookup(py::module_& module);

}  // namespace headway::embedding
