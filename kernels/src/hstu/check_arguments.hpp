#pragma once

#include "headway/kernels/hstu_attention.hpp"

namespace headway::kernels::hstu {

/// Of what the host knows of arguments, wherever their memory is.
/// @throws std::invalid_argument naming what does not fit
void check_sizes(HstuForwardArgs const& args);
void check_sizes(HstuBackwardArgs const& args);

/// And of what is in memory of the host, the sequence named.
void check_arguments(HstuForwardArgs const& args);
void check_arguments(HstuBackwardArgs const& args);

}  // namespace headway::kernels::hstu
