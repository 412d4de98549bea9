// SPDX-License-Identifier: Apache-2.0

// Failures of the bootstrap. The first failure ends the attempt at all ranks; each reports it as seen from itself:
// the origin says what went wrong, the others say which rank gave up and why.

#pragma once

#include "headway/comm/status.hpp"

#include <string>

namespace headway::comm {

/// Reason of a failed bootstrap, and the rank where it failed first.
struct BootstrapFailure {
  int origin = -1;
  std::string text;

  [[nodiscard]] std::string seen_by(int rank) const {
    return origin == rank ? text : "rank " + std::to_string(origin) + " gave up: " + text;
  }
};

/// A rank of the group rejected this one for its secret. The other ranks are not told, because they may do without this
/// process.
class RefusedError : public SystemError {
 public:
  using SystemError::SystemError;
};

/// Carries a failure to the reporting caller. what() is the text as its origin worded it.
class BootstrapError : public SystemError {
 public:
  explicit BootstrapError(BootstrapFailure failure) : SystemError(failure.text), failure_(std::move(failure)) {}
  [[nodiscard]] BootstrapFailure const& failure() const { return failure_; }

 private:
  BootstrapFailure failure_;
};

}  // namespace headway::comm
