// SPDX-License-Identifier: Apache-2.0
#include "compiled_model.hpp"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/version.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace headway::serving {

namespace {

using torch::inductor::AOTIModelPackageLoader;

class CompiledModel final : public DenseModel {
 public:
  CompiledModel(Manifest const& manifest, std::filesystem::path const& folder, int num_threads)
      : num_threads_(num_threads) {
    for (auto const& part : manifest.parts) {
      auto const path = (folder / part.file).string();
      try {
        parts_.push_back(std::make_unique<AOTIModelPackageLoader>(path, "model", /*run_single_threaded=*/true));
      } catch (c10::Error const& error) {
        throw PackageError(path + " cannot be loaded: " + error.what_without_backtrace());
      } catch (std::exception const& error) {
        throw PackageError(path + " cannot be loaded: " + error.what());
      }
    }
  }

  [[nodiscard]] std::vector<OutputRows> run(std::size_t part, std::span<InputTensor const> inputs) override {
    c10::InferenceMode const guard;
    if (!std::exchange(has_threads_, true)) at::set_num_threads(num_threads_);  // It counts for this thread.
    std::vector<at::Tensor> tensors;
    tensors.reserve(inputs.size());
    for (auto const& input : inputs) {
      tensors.push_back(
          at::from_blob(input.data, input.shape, input.type == ElementType::kFloat32 ? at::kFloat : at::kLong));
    }
    std::vector<OutputRows> outputs;
    for (auto const& tensor : run_part(part, tensors)) {
      auto const rows = tensor.to(at::kFloat).contiguous();
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
  std::vector<std::unique_ptr<AOTIModelPackageLoader>> parts_;
  static thread_local bool has_threads_;
};

thread_local bool CompiledModel::has_threads_ = false;

/// 2.14.0+cu130 and 2.14.0+cpu have the same code for CPUs.
std::string without_build(std::string const& version) { return version.substr(0, version.find('+')); }

}  // namespace

std::shared_ptr<DenseModel> load_compiled_model(Manifest const& manifest, std::filesystem::path const& folder,
                                                int num_threads) {
  if (without_build(manifest.torch_version) != without_build(TORCH_VERSION)) {
    throw PackageError(folder.string() + " was compiled by torch " + manifest.torch_version + ", and this is " +
                       TORCH_VERSION);
  }
  return std::make_shared<CompiledModel>(manifest, folder, num_threads);
}

}  // namespace headway::serving
