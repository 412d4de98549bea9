#pragma once

#include "headway/kernels/hstu_attention.hpp"
#include "headway/kernels/run_tasks.hpp"

namespace headway::kernels::hstu {

/// Of arguments that were checked, whose products are added up in `Real`.
template <class Real>
void run_forward_pass(HstuForwardArgs const& args, int num_threads, RunTasks const& run_tasks);

}  // namespace headway::kernels::hstu
