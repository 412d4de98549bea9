// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

namespace headway::base {

/// How a call ended.
enum class StatusCode {
  kOk,
  kWouldBlock,  ///< No flow-control credit left; try again after Endpoint::poll().
  kTimeout,     ///< The deadline passed; the message names what is missing.
  kPeerLost,    ///< A peer's process ended or its connection broke.
  kAborted,     ///< This rank or a peer called abort(), or ranks disagreed on an operation.
};

/// Outcome of a call whose failure the caller should handle. Cheap to copy if ok.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message)
      : code_(code), message_(std::make_shared<std::string const>(std::move(message))) {}
  static Status would_block() {
    Status status;
    status.code_ = StatusCode::kWouldBlock;
    return status;
  }

  [[nodiscard]] bool ok() const { return code_ == StatusCode::kOk; }
  [[nodiscard]] StatusCode code() const { return code_; }
  [[nodiscard]] std::string_view message() const { return message_ ? std::string_view(*message_) : std::string_view(); }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::shared_ptr<std::string const> message_;
};

/// The caller broke a documented precondition.
class UsageError : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

/// The operating system or a device refused a call. what() names the call, the error and the peer.
class SystemError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  /// A call failed with `error_number`, an errno value.
  SystemError(std::string_view call, int error_number, std::string_view context);
};

/// Exception form of a failed operation. Carries the Status with which the operation ended.
class OperationError : public std::runtime_error {
 public:
  explicit OperationError(Status status)
      : std::runtime_error(std::string(status.message())), status_(std::move(status)) {}
  [[nodiscard]] Status const& status() const { return status_; }

 private:
  Status status_;
};

/// @throws UsageError with `message` unless `condition` holds.
inline void expects(bool condition, std::string_view message) {
  if (!condition) [[unlikely]] {
    throw UsageError(std::string(message));
  }
}

}  // namespace headway::base
