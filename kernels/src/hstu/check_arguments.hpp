// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/kernels/hstu_attention.hpp"

namespace headway::kernels::hstu {

/// Checks what the host knows, wherever the memory of the arguments is: sizes, and null pointers.
/// @throws std::invalid_argument that names what does not fit
void check_sizes(HstuForwardArgs const& args);
void check_sizes(HstuBackwardArgs const& args);

/// Checks sizes, and also offsets, counts and time bounds in host memory. Errors name the sequence.
void check_arguments(HstuForwardArgs const& args);
void check_arguments(HstuBackwardArgs const& args);

}  // namespace headway::kernels::hstu
