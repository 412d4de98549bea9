// SPDX-License-Identifier: Apache-2.0

// Path of a log record from the library to Python: base/log.hpp calls back on its own thread, which takes the
// interpreter lock and calls headway.comm._logging. No thread that waits for the interpreter lock can block the
// library.

#include "python/log.hpp"

#include <headway/base/log.hpp>

#include <pybind11/chrono.h>
#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

namespace py = pybind11;

namespace headway::c10d_backend {

namespace {

/// Passes a record to `function(level, subsystem, rank, message)`. @throws std::runtime_error with Python's error.
void pass_to_python(py::function const& function, base::LogRecord const& record) {
  py::gil_scoped_acquire const acquired;
  try {
    function(static_cast<int>(record.level), record.subsystem, record.rank, record.message);
  } catch (py::error_already_set const& error) {
    throw std::runtime_error(error.what());  // Python's own error may only be destroyed with the interpreter lock.
  }
}

/// Passes records to `function` from now on; None: they go to stderr again.
void set_log_function(std::optional<py::function> function) {
  if (!function) {
    py::gil_scoped_release const released;
    return base::set_log_callback({});
  }
  // Never destroyed: the log's thread may hold it when the interpreter ends.
  auto const* const kept = new py::function(std::move(*function));
  py::gil_scoped_release const released;
  base::set_log_callback([kept](base::LogRecord const& record) { pass_to_python(*kept, record); });
}

}  // namespace

void define_log(py::module_& module) {
  module.def("set_log_function", &set_log_function, py::arg("function"));
  module.def("flush_log", &base::flush_log, py::arg("timeout"), py::call_guard<py::gil_scoped_release>());
}

}  // namespace headway::c10d_backend
