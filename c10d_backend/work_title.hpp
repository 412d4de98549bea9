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
constexpr std::string_view verb_of(std::string_view name) { return name.substr(name.find(':') + 1); }

/// Properties that a Work reports, known at its start.
struct WorkTitle {
  c10d::OpType type;
  char const* name;  ///< Profiler title, a literal: "headway:all_to_all".
  std::uint64_t sequence_number;
  std::chrono::milliseconds timeout;  ///< Counted from the start. When it passes, wait() fails the group.

  [[nodiscard]] std::string_view verb() const { return verb_of(name); }
};

/// Arguments for the base class of a Work. A title makes it record a profiler event, so it gets one only while a
/// profiler is active.
inline char const* title_for_profiler(WorkTitle const& title) { return at::hasCallbacks() ? title.name : nullptr; }

inline std::optional<std::vector<at::Tensor>> inputs_for_profiler(std::vector<at::Tensor> const& inputs) {
  if (!at::hasCallbacks()) return std::nullopt;
  return inputs;
}

}  // namespace headway::c10d_backend
