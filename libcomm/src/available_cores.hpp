#pragma once

namespace headway::comm {

/// Cores that the processes of this host may use together: online ones, or fewer by cgroup quota. At least 1. A binding
/// of single processes to cores does not count, since every rank may have its own.
int available_cores();

}  // namespace headway::comm
