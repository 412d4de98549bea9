#pragma once

#include "headway/embedding/cuda_place.hpp"
#include "torch_headers.hpp"

#include <optional>
#include <string>

namespace headway::embedding {

/// The CPU if none is given; of a CUDA device without a number the current one.
/// @throws comm::UsageError for any other kind
at::Device resolve(std::optional<at::Device> device);

/// A CUDA device, with torch's current stream there.
CudaPlace place_of(at::Device device);

/// For messages.
std::string name_of(at::Device device);

}  // namespace headway::embedding
