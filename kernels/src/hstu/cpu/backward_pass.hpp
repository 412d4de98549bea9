#pragma once

#include "headway/kernels/hstu_attention.hpp"
#include "headway/kernels/run_tasks.hpp"

namespace headway::kernels::hstu {

/// Runs the backward pass for checked arguments.
/// @tparam Element operand type of products
template <class Element>
void run_backward_pass(HstuBackwardArgs const& args, int num_threads, RunTasks const& run_tasks);

}  // namespace headway::kernels::hstu
