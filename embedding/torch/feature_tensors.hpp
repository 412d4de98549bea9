// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/embedding/features.hpp"
#include "tensors.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace headway::embedding {

/// Checks the tensors of jagged features. Shapes: K ids and B lists of a feature.
class FeatureTensors {
 public:
  /// All vectors have one element per feature.
  /// @param tables id of each feature's table, which is a part of its keys (Key::table)
  FeatureTensors(std::vector<std::string> names, std::vector<std::uint32_t> tables, std::vector<Pooling> poolings,
                 at::Device device);

  /// The features of a batch, as views of tensors.
  /// @param ids one tensor (K,) per feature, int64 or int32
  /// @param lengths one tensor (B,) per feature, int64 or int32: ids per list
  /// @param weights one tensor (K,) per feature, converted to float32, or none: weights of 1
  /// @param held gets the tensors that the features view
  /// @throws base::UsageError if tensors are of other shapes or types, on another device, or do not fit each other
  [[nodiscard]] std::vector<Feature> features(std::vector<at::Tensor> const& ids,
                                              std::vector<at::Tensor> const& lengths,
                                              std::vector<std::optional<at::Tensor>> const& weights,
                                              std::vector<at::Tensor>& held) const;

 private:
  /// @param what name of the tensor in an error
  /// @param tensor replaced by a contiguous copy if it is not contiguous; weights_of() also converts it
  [[nodiscard]] Integers integers_of(std::size_t feature, char const* what, at::Tensor& tensor) const;
  [[nodiscard]] std::span<float const> weights_of(std::size_t feature, std::size_t num_ids, at::Tensor& tensor) const;

  std::vector<std::string> names_;
  std::vector<std::uint32_t> tables_;
  std::vector<Pooling> poolings_;
  at::Device device_;
};

}  // namespace headway::embedding
