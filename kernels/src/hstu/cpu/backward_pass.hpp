#pragma once

#include "headway/kernels/hstu_attention.hpp"
#include "headway/kernels/run_tasks.hpp"

namespace headway::kernels::hstu {

/// Of arguments that were checked, of which products multiply such elements.
template <class Element>
void run_backward_pass(HstuBackwardArgs const& args, int num_threads, RunTasks const& run_tasks);

}  // namespace headway::kernels::hstu
