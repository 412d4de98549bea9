// SPDX-License-Identifier: Apache-2.0

// Unique keys of a batch as tensors, on either device.
//
// UniqueTensors::room holds the unique keys. On the CPU their number is known, and tensors have that length. On a CUDA
// device tensors are as long as the batch, and the number is a tensor of one element. keys() passes it on as
// Keys::num_known, so that lookups can follow without a wait. Example: batch 7 9 7 on CUDA has room.ids of 3 entries, 7
// 9 and one undefined, and size 2.

#include "tensor_deduplicator.hpp"

#include "headway/base/status.hpp"

#include <string>

namespace headway::embedding {

KeyTensors UniqueTensors::keys() const {
  if (size) return room.narrow(*size);
  auto keys = room;
  keys.num_known = size_on_device;
  return keys;
}

CsrMap UniqueTensors::csr(at::Device device) const {
  base::expects(room.device() == device, "unique keys on " + room.device().str() + " are not on " + device.str());
  if (on_host != nullptr) return on_host->csr();
  auto const words = [&](at::Tensor const& tensor, char const* name) {
    return span_of<std::uint32_t>(tensor, at::kInt, device, name);
  };
  return {.inverse_indices = words(inverse_indices, "inverse_indices"),
          .csr_indices = words(csr_indices, "csr_indices"),
          .csr_offsets = words(csr_offsets, "csr_offsets")};
}

std::int64_t UniqueTensors::wait_for_size() const { return size ? *size : size_on_device.item<std::int32_t>(); }

UniqueTensors UniqueTensors::narrow(std::int64_t known_size) const {
  base::expects(known_size >= 0 && known_size <= num_rows() && known_size == size.value_or(known_size),
                "there are not " + std::to_string(known_size) + " unique keys, but " + (size ? "" : "at most ") +
                    std::to_string(num_rows()));
  auto same = *this;
  same.size = known_size;
  return same;
}

Bags BagTensors::view(at::Device device) const {
  Bags bags;
  if (offsets) bags.offsets = span_of<std::int64_t>(*offsets, at::kLong, device, "offsets");
  if (weights) bags.weights = floats_of(*weights, device, "weights");
  return bags;
}

}  // namespace headway::embedding
