// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tensors.hpp"
#include "torch_headers.hpp"

namespace headway::embedding {

/// (K,) int32: the table of each key, on its device.
[[nodiscard]] at::Tensor tables_of(KeyTensors const& keys);
/// Keys as they travel, (K, 2) int64: the id, then table (low half) and count of lookups (high half) with 32 bits each.
/// @throws base::UsageError if keys have no counts
[[nodiscard]] at::Tensor messages_of(KeyTensors const& keys);
/// The inverse of messages_of(). @throws base::UsageError unless `messages` are (K, 2) int64
[[nodiscard]] KeyTensors keys_of_messages(at::Tensor const& messages);

}  // namespace headway::embedding
