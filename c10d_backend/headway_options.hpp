#pragma once

#include "torch_headers.hpp"

#include <headway/comm/device_group.hpp>
#include <headway/comm/group.hpp>

#include <string>

namespace headway::c10d_backend {

/// pg_options of a headway group: c10d's own plus those of libcomm. A plain value: copies are independent.
struct HeadwayOptions final : c10d::Backend::Options {
  explicit HeadwayOptions(comm::GroupOptions settings)
      : Options("headway", settings.timeout), group(std::move(settings)) {}

  comm::GroupOptions group;  ///< `timeout` and `name` are taken from the base class when a group is made.
  std::size_t cuda_slot_bytes = comm::DeviceOptions().slot_bytes;  ///< Largest fragment of a block on a CUDA device.
  std::string flight_folder;    ///< Where a rank writes what it did last when a group fails; empty: it does not.
  bool has_slot_bytes = false;  ///< The user gave it, which then wins over the environment.
  bool has_timeout = false;     ///< The user gave one, which then wins over that of init_process_group().
};

}  // namespace headway::c10d_backend
