// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/comm/group_options.hpp"

namespace headway::comm {

/// Checks the options of a group and fills in defaults. connect.cpp has it. @throws UsageError.
void check_options(int rank, int size, GroupOptions& options);

}  // namespace headway::comm
