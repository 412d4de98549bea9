// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/base/status.hpp"

namespace headway::comm {

using base::expects;
using base::OperationError;
using base::Status;
using base::StatusCode;
using base::SystemError;
using base::UsageError;

}  // namespace headway::comm
