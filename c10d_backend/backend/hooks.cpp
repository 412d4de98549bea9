// SPDX-License-Identifier: Apache-2.0

// PyTorch's hooks and timeout extensions on a headway group. runtime/hooks.cpp explains when hooks are called. An
// extension lengthens the timeout of operations that start from then on, until the one that started first completes.

#include "runtime/hooks.hpp"

#include "backend/headway_backend.hpp"

#include <utility>

namespace headway::c10d_backend {

std::chrono::milliseconds HeadwayBackend::current_extension() {
  if (extension_.load().count() == 0) return std::chrono::milliseconds(0);
  auto const now = handle()->hooks().timeout_extension();
  if (now != extension_.exchange(now)) apply_timeout(timeout_.load() + now);
  return now;
}

#if HEADWAY_TORCH_HAS_ABORT_HOOKS

void HeadwayBackend::addEphemeralTimeout(std::chrono::milliseconds const& timeout) {
  TORCH_CHECK_VALUE(timeout.count() >= 0, "headway: an extension of the timeout must be at least 0 ms, not ",
                    timeout.count());
  auto const handle = this->handle();
  handle->hooks().extend_timeout(timeout);
  extension_ = handle->hooks().timeout_extension();
  apply_timeout(timeout_.load() + extension_.load());
}

void HeadwayBackend::registerAbortHook(std::int64_t hook_id, c10d::AbortHook hook) {
  handle()->hooks().add_abort_hook(hook_id, std::move(hook));
}

// After shutdown() there is nothing to remove, and PyTorch removes its hooks in destructors, which must not throw.
void HeadwayBackend::unregisterAbortHook(std::int64_t hook_id) {
  if (auto const handle = handle_if_any()) handle->hooks().remove_abort_hook(hook_id);
}

#endif

#if HEADWAY_TORCH_HAS_COMPLETION_HOOKS

void HeadwayBackend::registerCompletionHook(std::int64_t hook_id, c10d::CompletionHook hook) {
  handle()->hooks().add_completion_hook(hook_id,
                                        [hook = std::move(hook)](std::uint64_t key, std::optional<float> duration_ms) {
                                          hook({.completionKey = key, .duration_ms = duration_ms});
                                        });
}

void HeadwayBackend::unregisterCompletionHook(std::int64_t hook_id) {
  if (auto const handle = handle_if_any()) handle->hooks().remove_completion_hook(hook_id);
}

#endif

}  // namespace headway::c10d_backend
