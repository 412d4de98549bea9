#pragma once

#include "headway/kernels/hstu_attention.hpp"

namespace headway::kernels::hstu {

/// Of arguments that were checked, whose products are added up in `Real`.
template <class Real>
void run_backward_pass(HstuBackwardArgs const& args, int num_threads);

}  // namespace headway::kernels::hstu
