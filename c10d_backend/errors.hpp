#pragma once

#include "torch_headers.hpp"

#include <headway/comm/status.hpp>

#include <string>
#include <string_view>

namespace headway::c10d_backend {

/// Rethrows the exception in flight as what Python should see: UsageError as ValueError, any other error of ours as
/// torch.distributed.DistBackendError; all else as it is. Call it in a catch block.
[[noreturn]] void rethrow_for_python(std::string const& operation);

/// The error of an operation that ended with `status`, for Work::exception(). `title`: as in the profiler; `note`: for
/// the end of the message.
std::exception_ptr make_error(std::string const& title, comm::Status const& status, std::string const& note);

/// Rethrows the exception in flight, which another backend raised in the call that starts `verb`: one of its arguments
/// as ValueError, all else as it is. Call it in a catch block.
[[noreturn]] void rethrow_of_delegate(std::string_view verb);

/// Calls `function`; what it throws is translated by rethrow_for_python().
template <typename Function>
decltype(auto) translate_errors(char const* operation, Function&& function) {
  try {
    return function();
  } catch (...) {
    rethrow_for_python(operation);
  }
}

/// Calls `function`; what it throws is translated by rethrow_of_delegate().
template <typename Function>
decltype(auto) translate_delegate_errors(std::string_view verb, Function&& function) {
  try {
    return function();
  } catch (...) {
    rethrow_of_delegate(verb);
  }
}

}  // namespace headway::c10d_backend
