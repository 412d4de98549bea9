// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sched.h>

namespace headway::comm {

/// Cores that this process may run on (its affinity mask).
cpu_set_t own_cores();

/// Number of cores that processes on `cores` may use together: their number, or less by the cgroup quota. At least 1.
int num_usable(cpu_set_t const& cores);

}  // namespace headway::comm
