// SPDX-License-Identifier: Apache-2.0
#include "compiled_model.hpp"

#include "cpu_features.hpp"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/version.h>

#include <dlfcn.h>
#include <link.h>

#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace headway::serving {

namespace {

using torch::inductor::AOTIModelPackageLoader;

/// Paths of the libraries of compiled parts that this process has loaded.
std::set<std::string> loaded_libraries() {
  std::set<std::string> paths;
  auto const add = [](dl_phdr_info* info, std::size_t /*size*/, void* found) {
    if (std::string_view const path = info->dlpi_name; path.find("aotinductor") != std::string_view::npos) {
      static_cast<std::set<std::string>*>(found)->emplace(path);
    }
    return 0;
  };
  dl_iterate_phdr(add, &paths);
  return paths;
}

/// Unloads a library that was closed while a thread had objects of it, if it is still there.
void unload(std::string const& path) {
  if (void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD)) dlclose(handle);
}

class CompiledModel final : public DenseModel {
 public:
  CompiledModel(Manifest const& manifest, std::filesystem::path const& folder, int num_threads, at::Device device)
      : num_threads_(num_threads), device_(device) {
    auto const before = loaded_libraries();
    for (auto const& part : manifest.parts) {
      auto const path = (folder / part.file).string();
      try {
        parts_.push_back(std::make_unique<AOTIModelPackageLoader>(path, "model", /*run_single_threaded=*/true,
                                                                  /*num_runners=*/1, device_.index()));
      } catch (c10::Error const& error) {
        throw PackageError(path + " cannot be loaded: " + error.what_without_backtrace());
      } catch (std::exception const& error) {
        throw PackageError(path + " cannot be loaded: " + error.what());
      }
    }
    for (auto const& path : loaded_libraries()) {
      if (!before.contains(path)) libraries_.push_back(path);
    }
  }
  CompiledModel(CompiledModel const&) = delete;
  CompiledModel& operator=(CompiledModel const&) = delete;
  /// The libraries have the weights, and must not stay in memory. They do as long as a thread lives that has called
  /// them, since they have variables of threads. So loading, runs and this end on threads that end.
  ~CompiledModel() override {
    std::jthread([this] { parts_.clear(); }).join();
    for (auto const& path : libraries_) unload(path);
  }

  [[nodiscard]] std::vector<OutputRows> run(std::size_t part, std::span<InputTensor const> inputs) override {
    c10::InferenceMode const guard;
    c10::OptionalDeviceGuard device_guard;
    if (device_.is_cuda()) device_guard.reset_device(device_);
    if (!std::exchange(has_threads_, true)) at::set_num_threads(num_threads_);  // It counts for this thread.
    std::vector<at::Tensor> tensors;
    tensors.reserve(inputs.size());
    for (auto const& input : inputs) {
      auto const type = input.type == ElementType::kFloat32 ? at::kFloat : at::kLong;
      tensors.push_back(at::from_blob(input.data, input.shape, type).to(device_));
    }
    std::vector<OutputRows> outputs;
    for (auto const& tensor : run_part(part, tensors)) {
      auto const rows = tensor.to(at::kCPU, at::kFloat).contiguous();
      auto const* data = rows.const_data_ptr<float>();
      outputs.push_back({.values = {data, data + rows.numel()}, .row_shape = rows.sizes().slice(1).vec()});
    }
    return outputs;
  }

 private:
  /// Runs a part. An exception of torch has a trace of the stack, which helps no client.
  [[nodiscard]] std::vector<at::Tensor> run_part(std::size_t part, std::vector<at::Tensor> const& inputs) {
    try {
      return parts_[part]->run(inputs);
    } catch (c10::Error const& error) {
      throw std::runtime_error(error.what_without_backtrace());
    }
  }

  int num_threads_;
  at::Device device_;
  std::vector<std::unique_ptr<AOTIModelPackageLoader>> parts_;
  std::vector<std::string> libraries_;  ///< Unloaded at the end.
  static thread_local bool has_threads_;
};

thread_local bool CompiledModel::has_threads_ = false;

/// 2.14.0+cu130 and 2.14.0+cpu have the same code for CPUs.
std::string without_build(std::string const& version) { return version.substr(0, version.find('+')); }

}  // namespace

std::shared_ptr<DenseModel> load_compiled_model(Manifest const& manifest, std::filesystem::path const& folder,
                                                int num_threads, int cuda_device) {
  if (without_build(manifest.torch_version) != without_build(TORCH_VERSION)) {
    throw PackageError(folder.string() + " was compiled by torch " + manifest.torch_version + ", and this is " +
                       TORCH_VERSION);
  }
  if (auto const missing = missing_cpu_features(manifest.cpu_features); !missing.empty()) {
    std::string names;
    for (auto const& each : missing) names += " " + each;
    throw PackageError(folder.string() + " was compiled for a processor with" + names + ", which this one lacks");
  }
  if (!manifest.is_for_cuda) return std::make_shared<CompiledModel>(manifest, folder, num_threads, at::kCPU);
  auto const num_devices = static_cast<int>(at::globalContext().hasCUDA() ? at::getNumGPUs() : 0);
  if (cuda_device >= num_devices) {
    throw PackageError(folder.string() + " is for a CUDA device, and number " + std::to_string(cuda_device) +
                       " is not there: this process has " + std::to_string(num_devices));
  }
  return std::make_shared<CompiledModel>(manifest, folder, num_threads,
                                         at::Device(at::kCUDA, static_cast<at::DeviceIndex>(cuda_device)));
}

}  // namespace headway::serving
