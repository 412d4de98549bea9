// SPDX-License-Identifier: Apache-2.0

// Headers of torch that the files of this folder share, precompiled.

#pragma once

#include <pybind11/functional.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
