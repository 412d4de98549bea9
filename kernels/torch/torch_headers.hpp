#pragma once

// What this folder needs of torch, read by the compiler once (precompiled).

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>
