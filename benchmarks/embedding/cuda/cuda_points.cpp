// SPDX-License-Identifier: Apache-2.0
#include "cuda_points.hpp"

#include "device_array.hpp"

#include <cerrno>
#include <system_error>
#include <utility>

namespace headway::benchmarks {

CudaPoints::CudaPoints(std::string const& file, std::string commit, int device)
    : commit_(std::move(commit)), file_(nullptr, &std::fclose) {
  cudaDeviceProp properties{};
  base::check_cuda(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  machine_ = properties.name;
  if (file.empty()) return;
  file_.reset(std::fopen(file.c_str(), "w"));
  if (file_ == nullptr) throw std::system_error(errno, std::generic_category(), file);
}

void CudaPoints::write(JsonObject point) const {
  if (file_ == nullptr) return;
  if (!commit_.empty()) point.add("commit", commit_);
  std::fprintf(file_.get(), "%s\n", point.add("machine", machine_).text().c_str());
  std::fflush(file_.get());
}

}  // namespace headway::benchmarks
