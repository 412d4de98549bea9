#pragma once

#include "headway/kernels/hstu_attention.hpp"

namespace headway::kernels::hstu {

/// @throws std::invalid_argument naming what does not fit, the sequence included
void check_arguments(HstuForwardArgs const& args);
void check_arguments(HstuBackwardArgs const& args);

}  // namespace headway::kernels::hstu
