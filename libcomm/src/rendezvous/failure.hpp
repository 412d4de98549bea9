#pragma once

#include "headway/comm/status.hpp"

#include <string>

namespace headway::comm {

/// Reason of a failed rendezvous, and the rank where it failed first.
struct RendezvousFailure {
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
class RendezvousError : public SystemError {
 public:
  explicit RendezvousError(RendezvousFailure failure) : SystemError(failure.text), failure_(std::move(failure)) {}
  [[nodiscard]] RendezvousFailure const& failure() const { return failure_; }

 private:
  RendezvousFailure failure_;
};

}  // namespace headway::comm
