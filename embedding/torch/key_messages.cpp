// SPDX-License-Identifier: Apache-2.0

// Messages of keys: encoding and decoding. On the CPU it takes one pass over the keys; on a GPU the operators of torch.

#include "key_messages.hpp"

#include "headway/base/status.hpp"

#include <cstdint>

namespace headway::embedding {

at::Tensor tables_of(KeyTensors const& keys) {
  if (keys.tables) return *keys.tables;
  auto const number = static_cast<std::int32_t>(keys.table);  // The same bits.
  return at::full({keys.ids.numel()}, number, keys.ids.options().dtype(at::kInt));
}

at::Tensor messages_of(KeyTensors const& keys) {
  base::expects(keys.counts.has_value(), "keys that travel have counts");
  auto const num_keys = keys.ids.numel();
  if (!keys.ids.is_cpu()) {
    auto const halves = keys.ids.unsqueeze(1).view(at::kInt);
    return at::cat({halves, tables_of(keys).unsqueeze(1), keys.counts->unsqueeze(1)}, 1).view(at::kLong);
  }
  auto messages = empty({num_keys, 2}, at::kLong, at::kCPU);
  auto const view = keys.view(at::kCPU);
  auto const out = span_of<std::uint64_t>(messages, at::kLong, at::kCPU, "messages");
  for (std::size_t i = 0; i < view.size(); ++i) {
    out[2 * i] = view.ids[i];
    out[2 * i + 1] = view[i].table | std::uint64_t{view.counts[i]} << 32;
  }
  return messages;
}

KeyTensors keys_of_messages(at::Tensor const& messages) {
  base::expects(messages.dim() == 2 && messages.size(1) == 2 && messages.scalar_type() == at::kLong,
                "messages of keys must be int64, (keys, 2)");
  if (!messages.is_cpu()) {
    auto const words = messages.view(at::kInt).narrow(1, 2, 2).t().contiguous();
    return {messages.select(1, 0).contiguous(), words[0], 0, words[1]};
  }
  auto const contiguous = messages.contiguous();
  auto const in = span_of<std::uint64_t>(contiguous, at::kLong, at::kCPU, "messages");
  auto const num_keys = messages.size(0);
  auto ids = empty(num_keys, at::kLong, at::kCPU), tables = empty(num_keys, at::kInt, at::kCPU),
       counts = empty(num_keys, at::kInt, at::kCPU);
  auto const out_ids = span_of<std::uint64_t>(ids, at::kLong, at::kCPU, "ids");
  auto const out_tables = span_of<std::uint32_t>(tables, at::kInt, at::kCPU, "tables");
  auto const out_counts = span_of<std::uint32_t>(counts, at::kInt, at::kCPU, "counts");
  for (std::size_t i = 0; i < out_ids.size(); ++i) {
    out_ids[i] = in[2 * i];
    out_tables[i] = static_cast<std::uint32_t>(in[2 * i + 1]);
    out_counts[i] = static_cast<std::uint32_t>(in[2 * i + 1] >> 32);
  }
  return {ids, tables, 0, counts};
}

}  // namespace headway::embedding
