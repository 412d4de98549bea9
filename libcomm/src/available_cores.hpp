#pragma once

#include <sched.h>

namespace headway::comm {

/// Cores that this process may run on.
cpu_set_t own_cores();

/// How many cores processes have that together may run on `cores`: those, or fewer by cgroup quota. At least 1.
int num_usable(cpu_set_t const& cores);

}  // namespace headway::comm
