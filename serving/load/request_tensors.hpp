// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "open_inference.pb.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace headway::serving {

/// Adds an input to a request.
template <class T>
void add_tensor(inference::ModelInferRequest& request, std::string const& name, char const* type,
                std::vector<std::int64_t> const& shape, std::span<T const> values) {
  auto& input = *request.add_inputs();
  input.set_name(name);
  input.set_datatype(type);
  for (auto const size : shape) input.add_shape(size);
  request.add_raw_input_contents(values.data(), values.size_bytes());
}

/// Adds the ids of a feature, list after list.
inline void add_ids(inference::ModelInferRequest& request, std::string const& feature,
                    std::span<std::int64_t const> ids) {
  add_tensor(request, feature + ".ids", "INT64", {static_cast<std::int64_t>(ids.size())}, ids);
}

/// Adds lengths, or numbers of items.
inline void add_lengths(inference::ModelInferRequest& request, std::string const& name,
                        std::span<std::int32_t const> lengths) {
  add_tensor(request, name, "INT32", {static_cast<std::int64_t>(lengths.size())}, lengths);
}

/// Adds a dense feature: rows of `width` values.
inline void add_dense(inference::ModelInferRequest& request, std::string const& name, std::span<float const> values,
                      std::size_t width) {
  add_tensor(request, name, "FP32",
             {static_cast<std::int64_t>(values.size() / width), static_cast<std::int64_t>(width)}, values);
}

}  // namespace headway::serving
