// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "json_object.hpp"

#include <cstdio>
#include <memory>
#include <string>

namespace headway::benchmarks {

/// Writes JSON points to a file, one per line, each with the commit and the name of the device.
class CudaPoints {
 public:
  /// @param file path; empty: write() does nothing
  /// @throws std::system_error if the file cannot be opened
  CudaPoints(std::string const& file, std::string commit, int device);

  void write(JsonObject point) const;
  [[nodiscard]] std::string const& machine() const { return machine_; }

 private:
  std::string commit_, machine_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
};

}  // namespace headway::benchmarks
