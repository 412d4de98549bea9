#pragma once

#include "json_object.hpp"

#include <cstdio>
#include <memory>
#include <string>

namespace headway::benchmarks {

/// Writes points to a file, each with the commit and the device.
class CudaPoints {
 public:
  /// @param file none if empty
  /// @throws std::system_error
  CudaPoints(std::string const& file, std::string commit, int device);

  void write(JsonObject point) const;
  [[nodiscard]] std::string const& machine() const { return machine_; }

 private:
  std::string commit_, machine_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
};

}  // namespace headway::benchmarks
