#include "hstu/cuda/hopper_forward.hpp"
#include "hstu/cuda/rows_alignment.hpp"
#include "hstu/cuda/time_table.cuh"

#include <cstdint>
#include <limits>
#include <string>

namespace headway::kernels {

std::string why_not_for_hopper(HstuForwardArgs const& args) {
  if (args.type != ElementType::kBfloat16 && args.type != ElementType::kFloat16) return "elements are not of 16 bits";
  bool const has_dim = args.dim == 32 || args.dim == 64 || args.dim == 128 || args.dim == 256;
  if (!has_dim || args.value_dim != args.dim) {
    return "dim and value_dim are not equal and 32, 64, 128 or 256";
  }
  if (!begins_at_units_of_16_bytes(args.query) || !begins_at_units_of_16_bytes(args.key) ||
      !begins_at_units_of_16_bytes(args.value) || !begins_at_units_of_16_bytes(args.out)) {
    return "rows do not begin at multiples of 16 bytes";
  }
  if (args.bias.has_time() && args.bias.num_time_bounds > TimeTable::kMostBounds)
    return "there are too many time bounds";
  if (args.sequences.num_keys > std::numeric_limits<std::int32_t>::max()) return "there are 2^31 tokens or more";
  return "";
}

void hopper_forward_async(HstuForwardArgs const& args, CudaStream stream, std::int32_t* tiles_taken) {
  if (args.dim == 32) hopper_forward_of_dim<32>(args, stream, tiles_taken);
  if (args.dim == 64) hopper_forward_of_dim<64>(args, stream, tiles_taken);
  if (args.dim == 128) hopper_forward_of_dim<128>(args, stream, tiles_taken);
  if (args.dim == 256) hopper_forward_of_dim<256>(args, stream, tiles_taken);
}

}  // namespace headway::kernels
