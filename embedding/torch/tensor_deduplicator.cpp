#include "tensor_deduplicator.hpp"

#include "headway/comm/status.hpp"

#include <string>

namespace headway::embedding {

KeyTensors UniqueTensors::keys() const {
  if (size) return room.narrow(*size);
  auto keys = room;
  keys.num_known = size_on_device;
  return keys;
}

Members UniqueTensors::of_keys(at::Device device) const {
  comm::expects(room.device() == device, "unique keys on " + room.device().str() + " are not on " + device.str());
  if (on_host != nullptr) return on_host->of_keys();
  auto const words = [&](at::Tensor const& tensor, char const* name) {
    return span_of<std::uint32_t>(tensor, at::kInt, device, name);
  };
  return {
      .numbers = words(numbers, "numbers"), .members = words(members, "members"), .begins = words(begins, "begins")};
}

std::int64_t UniqueTensors::wait_for_size() const { return size ? *size : size_on_device.item<std::int32_t>(); }

UniqueTensors UniqueTensors::narrow(std::int64_t known_size) const {
  comm::expects(known_size >= 0 && known_size <= num_rows() && known_size == size.value_or(known_size),
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
