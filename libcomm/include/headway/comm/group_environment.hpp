// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/comm/group_options.hpp"

namespace headway::comm {

/// Sets what the variables of a job say, as in Python: the secret (HEADWAY_GROUP_SECRET, or the content of the file
/// HEADWAY_GROUP_SECRET_FILE without the white space around it), HEADWAY_TRANSPORT, HEADWAY_INTERFACE and
/// HEADWAY_RDMA_DEVICE. Variables that are not set change nothing. Call it before threads may change the environment.
/// @throws base::UsageError that names the variable
void read_group_environment(GroupOptions& options);

}  // namespace headway::comm
