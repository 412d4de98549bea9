// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/embedding/cuda_place.hpp"
#include "torch_headers.hpp"

#include <optional>
#include <string>

namespace headway::embedding {

/// The CPU if no device is given; the current CUDA device if a CUDA device has no index.
/// @throws base::UsageError for any other kind of device
at::Device resolve(std::optional<at::Device> device);

/// A CUDA device with torch's current stream on it.
CudaPlace place_of(at::Device device);

/// Name of a device in error messages.
std::string name_of(at::Device device);

}  // namespace headway::embedding
