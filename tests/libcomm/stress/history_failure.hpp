// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>

namespace headway::comm::stress {

/// Error that a history found, with the ranks and operations concerned.
class HistoryFailure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace headway::comm::stress
