// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/serving/request.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace headway::serving {

/// Type of the elements of a tensor.
enum class ElementType : std::uint8_t { kFloat32, kInt64 };

/// A contiguous tensor in host memory of the caller.
struct InputTensor {
  void* data;
  ElementType type;
  std::vector<std::int64_t> shape;
};

/// The dense part of a model: everything behind its lookups, compiled for each bucket of the package.
class DenseModel {
 public:
  DenseModel() = default;
  DenseModel(DenseModel const&) = delete;
  DenseModel& operator=(DenseModel const&) = delete;
  virtual ~DenseModel() = default;

  /// Computes a batch. One thread calls it at a time.
  /// @param part index into Manifest::parts
  /// @param inputs in the order that Manifest tells, of the sizes of the part
  /// @returns (Manifest::outputs) with a row for each item of the bucket, those of padding too
  /// @throws std::exception: the batch has failed, later ones may succeed
  [[nodiscard]] virtual std::vector<OutputRows> run(std::size_t part, std::span<InputTensor const> inputs) = 0;
};

}  // namespace headway::serving
