// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runtime/hooks.hpp"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

namespace headway::c10d_backend {

/// Poll of a work (runtime/hooks.hpp): none while one of its operations is pending, then whether all succeeded.
template <typename OperationPtr>
Hooks::Poll completion_poll(std::vector<OperationPtr> operations) {
  return [operations = std::move(operations)]() -> std::optional<bool> {
    if (!std::ranges::all_of(operations, [](auto const& operation) { return operation->done(); })) return std::nullopt;
    return std::ranges::all_of(operations, [](auto const& operation) { return operation->status().ok(); });
  };
}

}  // namespace headway::c10d_backend
