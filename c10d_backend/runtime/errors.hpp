// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "torch_headers.hpp"

#include <headway/comm/status.hpp>

#include <string>
#include <string_view>

namespace headway::c10d_backend {

/// Rethrows the current exception for Python: UsageError as ValueError, other libcomm errors as
/// torch.distributed.DistBackendError, any other exception unchanged. Call it in a catch block.
[[noreturn]] void rethrow_for_python(std::string const& operation);

/// Error of an operation that ended with `status`, for Work::exception(). `title`: the profiler's title. `note`:
/// appended to the message.
std::exception_ptr make_error(std::string const& title, comm::Status const& status, std::string const& note);

/// Rethrows the current exception, which another backend raised when `op_name` was started: errors about arguments as
/// ValueError, any other unchanged. Call it in a catch block.
[[noreturn]] void rethrow_of_delegate(std::string_view op_name);

/// Calls `function` and translates its exceptions with rethrow_for_python().
template <typename Function>
decltype(auto) translate_errors(char const* operation, Function&& function) {
  try {
    return function();
  } catch (...) {
    rethrow_for_python(operation);
  }
}

/// Calls `function` and translates its exceptions with rethrow_of_delegate().
template <typename Function>
decltype(auto) translate_delegate_errors(std::string_view op_name, Function&& function) {
  try {
    return function();
  } catch (...) {
    rethrow_of_delegate(op_name);
  }
}

}  // namespace headway::c10d_backend
