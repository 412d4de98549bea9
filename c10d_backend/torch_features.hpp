// SPDX-License-Identifier: Apache-2.0
#pragma once

// Features of the torch that this is compiled against. All other files ask for a feature, never for a version.

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/version.h>

/// Abort hooks, Options::clone(), addEphemeralTimeout() and collectives named *_single: torch 2.14 and later.
#ifdef C10D_BACKEND_HAS_HOOKS
#define HEADWAY_TORCH_HAS_ABORT_HOOKS 1
#else
#define HEADWAY_TORCH_HAS_ABORT_HOOKS 0
#endif

/// Completion hooks, and methods that tell whether a backend has hooks: torch 2.15 and later, under the same macro of
/// torch as abort hooks.
#if HEADWAY_TORCH_HAS_ABORT_HOOKS && (TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 15)
#define HEADWAY_TORCH_HAS_COMPLETION_HOOKS 1
#else
#define HEADWAY_TORCH_HAS_COMPLETION_HOOKS 0
#endif
