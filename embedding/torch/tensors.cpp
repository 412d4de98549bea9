#include "tensors.hpp"

#include "headway/comm/status.hpp"

#include <limits>
#include <string>

namespace headway::embedding {

template <class T>
std::span<T> span_of(at::Tensor const& tensor, at::ScalarType type, char const* name) {
  comm::expects(tensor.scalar_type() == type && tensor.is_contiguous() && tensor.device().is_cpu(),
                std::string(name) + " must be a contiguous " + at::toString(type) + " tensor on the CPU, not " +
                    at::toString(tensor.scalar_type()) + " on " + tensor.device().str());
  return {static_cast<T*>(tensor.data_ptr()), static_cast<std::size_t>(tensor.numel())};
}

template std::span<std::uint8_t> span_of(at::Tensor const&, at::ScalarType, char const*);
template std::span<std::uint32_t> span_of(at::Tensor const&, at::ScalarType, char const*);
template std::span<std::int64_t> span_of(at::Tensor const&, at::ScalarType, char const*);
template std::span<std::uint64_t> span_of(at::Tensor const&, at::ScalarType, char const*);
template std::span<float> span_of(at::Tensor const&, at::ScalarType, char const*);

std::span<float const> floats_of(at::Tensor const& tensor, char const* name) {
  return span_of<float>(tensor, at::kFloat, name);
}

KeyTensors::KeyTensors(at::Tensor the_ids, std::optional<at::Tensor> the_tables, std::int64_t the_table,
                       std::optional<at::Tensor> the_counts)
    : ids(std::move(the_ids)),
      tables(std::move(the_tables)),
      table(static_cast<std::uint32_t>(the_table)),
      counts(std::move(the_counts)) {
  comm::expects(the_table >= 0 && the_table <= std::numeric_limits<std::uint32_t>::max(),
                "there is no table " + std::to_string(the_table));
  auto const size = span_of<std::uint64_t>(ids, at::kLong, "ids").size();
  comm::expects(ids.dim() == 1, "ids must have one dimension, not " + std::to_string(ids.dim()));
  if (tables)
    comm::expects(span_of<std::uint32_t>(*tables, at::kInt, "tables").size() == size, "not one table for each key");
  if (counts)
    comm::expects(span_of<std::uint32_t>(*counts, at::kInt, "counts").size() == size, "not one count for each key");
}

Keys KeyTensors::view() const {
  return {.ids = span_of<std::uint64_t>(ids, at::kLong, "ids"),
          .tables = tables ? span_of<std::uint32_t>(*tables, at::kInt, "tables") : std::span<std::uint32_t>(),
          .table = table,
          .counts = counts ? span_of<std::uint32_t>(*counts, at::kInt, "counts") : std::span<std::uint32_t>()};
}

}  // namespace headway::embedding
