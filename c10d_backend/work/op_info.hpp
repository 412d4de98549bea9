// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "torch_headers.hpp"

#include <ATen/record_function.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace headway::c10d_backend {

/// Name without its prefix "headway:", for messages that begin with "headway: ".
/// Example: op_name_of("headway:all_to_all") is "all_to_all".
constexpr std::string_view op_name_of(std::string_view name) { return name.substr(name.find(':') + 1); }

/// Properties that a Work reports, known at its start.
struct OpInfo {
  c10d::OpType type;
  char const* name;                   ///< Profiler title, a literal: "headway:all_to_all".
  std::uint64_t seq;                  ///< Number of operations of the group that started before.
  std::chrono::milliseconds timeout;  ///< Counted from the start. When it passes, wait() fails the group.
  std::uint64_t key;                  ///< Names the operation to hooks; unique in the process (getCompletionKey()).

  [[nodiscard]] std::string_view op_name() const { return op_name_of(name); }
};

/// Arguments for the base class of a Work. A title makes it record a profiler event, so it gets one only while a
/// profiler is active.
inline char const* profiler_title(OpInfo const& op) { return at::hasCallbacks() ? op.name : nullptr; }

inline std::optional<std::vector<at::Tensor>> inputs_for_profiler(std::vector<at::Tensor> const& inputs) {
  if (!at::hasCallbacks()) return std::nullopt;
  return inputs;
}

}  // namespace headway::c10d_backend
