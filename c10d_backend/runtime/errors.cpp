// SPDX-License-Identifier: Apache-2.0

// Translation of errors between the three worlds: libcomm's exceptions and statuses, c10's exceptions, and Python's.
//
//   comm::UsageError                    c10::ValueError             ValueError
//   comm::OperationError, SystemError   c10::DistBackendError       torch.distributed.DistBackendError
//   a delegate's plain c10::Error,      c10::ValueError             ValueError
//   or c10::TypeError
//
// A delegate is the backend (Gloo, NCCL) that reduces for a headway group.
//
// The wording matters: torch's own tests and some frameworks look for " Timed out " in the text of an error.

#include "runtime/errors.hpp"

#include <typeinfo>

namespace headway::c10d_backend {

namespace {

std::string describe(std::string const& title, comm::Status const& status) {
  // PyTorch's tests and similar code search for the words "Timed out" with spaces around them.
  char const* const kind = status.code() == comm::StatusCode::kTimeout    ? " Timed out : "
                           : status.code() == comm::StatusCode::kPeerLost ? " lost a peer: "
                                                                          : " failed: ";
  return title + kind + std::string(status.message());
}

/// A Work's title already starts with "headway:". Other operations get that prefix.
std::string with_prefix(std::string const& operation) {
  return operation.starts_with("headway:") ? operation : "headway: " + operation;
}

c10::DistBackendError backend_error(std::string message) {
  return c10::DistBackendError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, std::move(message));
}

}  // namespace

void rethrow_for_python(std::string const& operation) {
  try {
    throw;
  } catch (comm::UsageError const& error) {
    throw c10::ValueError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                          with_prefix(operation) + ": " + error.what());
  } catch (comm::OperationError const& error) {
    throw backend_error(describe(with_prefix(operation), error.status()));
  } catch (comm::SystemError const& error) {
    throw backend_error(with_prefix(operation) + ": " + error.what());
  }
}

void rethrow_of_delegate(std::string_view op_name) {
  try {
    throw;
  } catch (c10::Error const& error) {
    // Communication errors are DistBackendError. Device and memory errors have types of their own too.
    if (typeid(error) != typeid(c10::Error) && typeid(error) != typeid(c10::TypeError)) throw;
    throw c10::ValueError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                          "headway: " + std::string(op_name) + ": " + error.what_without_backtrace());
  }
}

std::exception_ptr make_error(std::string const& title, comm::Status const& status, std::string const& note) {
  return std::make_exception_ptr(backend_error(describe(title, status) + note));
}

}  // namespace headway::c10d_backend
