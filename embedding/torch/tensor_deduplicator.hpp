#pragma once

#include "headway/embedding/deduplicator.hpp"
#include "headway/embedding/workers.hpp"
#include "tensors.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

namespace headway::embedding {

/// Unique keys as Python has them. On a CUDA device tensors are as long as the batch, and only the device knows how
/// many keys there are, until narrow() is told.
struct UniqueTensors {
  KeyTensors room;                   ///< What keys are the first of.
  std::optional<std::int64_t> size;  ///< None: only the device knows.
  at::Tensor numbers;                ///< (K,) int32

  std::shared_ptr<UniqueKeys const> on_host{};       ///< On the CPU: what the tensors are views of.
  at::Tensor members{}, begins{}, size_on_device{};  ///< On a device: what else CudaUniqueKeys has.

  [[nodiscard]] KeyTensors keys() const;
  /// @throws comm::UsageError unless they are on `device`
  [[nodiscard]] Members of_keys(at::Device device) const;
  /// Rows of what belongs to the keys: as many as there are, or may be.
  [[nodiscard]] std::int64_t num_rows() const { return size.value_or(room.ids.numel()); }
  /// How many there are; waits for a device that alone knows.
  [[nodiscard]] std::int64_t wait_for_size() const;
  /// The same with `known_size` keys, which must be how many there are.
  [[nodiscard]] UniqueTensors narrow(std::int64_t known_size) const;
};

/// Bags of keys as tensors, either of which may be missing.
struct BagTensors {
  std::optional<at::Tensor> const& offsets;  ///< (B + 1,) int64
  std::optional<at::Tensor> const& weights;  ///< (K,)

  [[nodiscard]] Bags view(at::Device device) const;
};

/// Deduplicator and CudaDeduplicator as Python has them.
class TensorDeduplicator {
 public:
  TensorDeduplicator() = default;
  TensorDeduplicator(TensorDeduplicator const&) = delete;
  TensorDeduplicator& operator=(TensorDeduplicator const&) = delete;
  virtual ~TensorDeduplicator() = default;

  [[nodiscard]] virtual UniqueTensors deduplicate(KeyTensors const& keys) = 0;
  [[nodiscard]] virtual UniqueTensors take_as_unique(KeyTensors const& keys) = 0;
  /// @param order (rows,) int32
  [[nodiscard]] virtual UniqueTensors reorder(UniqueTensors const& unique, at::Tensor const& order) = 0;
  /// @returns (B, D)
  [[nodiscard]] virtual at::Tensor hand_out(UniqueTensors const& unique, BagTensors const& bags,
                                            at::Tensor const& values) = 0;
  /// @returns (rows, D)
  [[nodiscard]] virtual at::Tensor add_up(UniqueTensors const& unique, BagTensors const& bags,
                                          at::Tensor const& values) = 0;
  /// @returns (K,) int32 the order, and (R,) int64 the counts
  [[nodiscard]] virtual std::pair<at::Tensor, at::Tensor> route(KeyTensors const& keys, std::uint32_t num_ranks) = 0;
};

[[nodiscard]] std::unique_ptr<TensorDeduplicator> make_host_deduplicator(std::shared_ptr<WorkerPool> workers);
[[nodiscard]] std::unique_ptr<TensorDeduplicator> make_device_deduplicator(at::Device device);

}  // namespace headway::embedding
