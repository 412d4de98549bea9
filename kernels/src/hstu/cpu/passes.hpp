// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/kernels/executor.hpp"
#include "headway/kernels/hstu_attention.hpp"

namespace headway::kernels::hstu {

/// Runs the forward pass for checked arguments.
/// @tparam Element operand type of products
template <class Element>
void run_forward_pass(HstuForwardArgs const& args, int num_threads, Executor const& executor);

/// Runs the backward pass for checked arguments.
/// @tparam Element operand type of products
template <class Element>
void run_backward_pass(HstuBackwardArgs const& args, int num_threads, Executor const& executor);

}  // namespace headway::kernels::hstu
