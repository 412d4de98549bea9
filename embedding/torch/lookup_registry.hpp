// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tensor_lookup.hpp"

#include <string>

namespace headway::embedding {

/// Names of the lookups of this process. An exported program refers to a lookup by its name, and holds no tables. The
/// process that loads the program makes the lookup first.
/// @throws base::UsageError if another lookup has the name, or this one has another name
void register_lookup(std::string const& name, c10::intrusive_ptr<TensorLookup> const& lookup);
/// @throws base::UsageError if no lookup has the name
[[nodiscard]] c10::intrusive_ptr<TensorLookup> registered_lookup(std::string const& name);
/// @throws base::UsageError if the lookup has no name
[[nodiscard]] std::string registered_name(c10::intrusive_ptr<TensorLookup> const& lookup);

}  // namespace headway::embedding
