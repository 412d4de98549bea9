#pragma once

#include "torch_headers.hpp"

#include <headway/comm/device_group.hpp>
#include <headway/comm/group.hpp>

#include <string>

namespace headway::c10d_backend {

/// pg_options of a headway group: options of c10d and of libcomm. Copies are independent.
struct HeadwayOptions final : c10d::Backend::Options {
  explicit HeadwayOptions(comm::GroupOptions settings)
      : Options("headway", settings.timeout), group(std::move(settings)) {}

  comm::GroupOptions group;  ///< Its `timeout` and `name` are replaced by those of the base class when a group is made.
  std::size_t cuda_slot_bytes = comm::DeviceOptions().slot_bytes;  ///< Largest fragment of a block on a CUDA device.
  std::string flight_folder;    ///< Folder for the flight records of a failed group; empty disables writing.
  bool has_slot_bytes = false;  ///< True if the user set slot_bytes, which then overrides the environment.
  bool has_timeout = false;     ///< True if the user set a timeout, which then overrides that of init_process_group().
};

}  // namespace headway::c10d_backend
