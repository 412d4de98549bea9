// SPDX-License-Identifier: Apache-2.0
#pragma once

// Precompiled header: the parts of torch that this folder uses.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/custom_class.h>
#include <torch/library.h>
