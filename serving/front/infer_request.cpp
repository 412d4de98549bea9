// SPDX-License-Identifier: Apache-2.0
#include "infer_request.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace headway::serving {

namespace {

using inference::ModelInferRequest;
using Tensor = ModelInferRequest::InferInputTensor;

static_assert(std::endian::native == std::endian::little, "raw contents are little-endian");

constexpr char const* kItemsName = "items";

/// The protocol's name of an element type.
template <class T>
constexpr char const* kTypeName = nullptr;
template <>
constexpr char const* kTypeName<std::int64_t> = "INT64";
template <>
constexpr char const* kTypeName<std::int32_t> = "INT32";
template <>
constexpr char const* kTypeName<float> = "FP32";

std::string text_of(Tensor const& tensor) {
  constexpr int kMostDims = 4;
  std::string text = quoted(tensor.datatype()) + " [";
  for (int i = 0; i < std::min(tensor.shape_size(), kMostDims); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(tensor.shape(i));
  }
  return text + (tensor.shape_size() > kMostDims ? ", ...]" : "]");
}

/// Arrays that are not in the message: lengths of 1, and contents whose address is not aligned.
struct Owned {
  std::shared_ptr<ModelInferRequest const> message;
  std::vector<std::vector<std::int32_t>> ones{};
  std::vector<std::vector<std::byte>> copies{};
};

/// The tensors of a message by name. Those that are taken are marked, to find unknown ones.
class Tensors {
 public:
  explicit Tensors(std::shared_ptr<ModelInferRequest const> message) : owned_(std::make_shared<Owned>()) {
    owned_->message = std::move(message);
    auto const& inputs = this->message().inputs();
    bool const is_raw = this->message().raw_input_contents_size() > 0;
    if (is_raw && this->message().raw_input_contents_size() != inputs.size()) {
      throw RequestError("there are " + std::to_string(inputs.size()) + " inputs, and " +
                         std::to_string(this->message().raw_input_contents_size()) + " raw_input_contents");
    }
    for (int i = 0; i < inputs.size(); ++i) {
      if (!by_name_.emplace(inputs[i].name(), i).second)
        throw RequestError(quoted(inputs[i].name()) + " is there twice");
    }
  }

  [[nodiscard]] bool has(std::string const& name) const { return by_name_.contains(name); }
  /// A tensor of one dimension, or of two if `width` is given.
  template <class T>
  [[nodiscard]] std::span<T const> take(std::string const& name, std::size_t width = 0) {
    auto const found = by_name_.find(name);
    if (found == by_name_.end()) throw RequestError(name + " is missing");
    int const index = found->second;
    by_name_.erase(found);
    auto const& tensor = message().inputs(index);
    auto const num_elements = expect_shape<T>(tensor, width);
    auto const contents = contents_of<T>(index);
    if (contents.size() != num_elements) {
      throw RequestError(name + " is " + text_of(tensor) + ", and its contents have " +
                         std::to_string(contents.size()) + " elements");
    }
    return contents;
  }
  [[nodiscard]] std::span<std::int32_t const> ones(std::size_t count) { return owned_->ones.emplace_back(count, 1); }
  void expect_all_taken() const {
    if (!by_name_.empty()) throw RequestError("the model has no input " + quoted(by_name_.begin()->first));
  }
  [[nodiscard]] std::shared_ptr<void const> memory() const { return owned_; }

 private:
  [[nodiscard]] ModelInferRequest const& message() const { return *owned_->message; }

  /// @returns number of elements
  template <class T>
  static std::size_t expect_shape(Tensor const& tensor, std::size_t width) {
    auto const& shape = tensor.shape();
    bool const has_width = width > 0 && shape.size() == 2 && shape[1] == static_cast<std::int64_t>(width);
    bool const is_flat = shape.size() == 1 && width <= 1;
    constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
    if (tensor.datatype() != kTypeName<T> || !(has_width || is_flat) || shape[0] < 0 || shape[0] > kMost) {
      throw RequestError(tensor.name() + " must be " + kTypeName<T> +
                         (width > 0 ? " [N, " + std::to_string(width) + "]" : " [N]") + ", not " + text_of(tensor));
    }
    return static_cast<std::size_t>(shape[0]) * std::max<std::size_t>(1, width);
  }

  template <class Repeated>
  static auto span_of(Repeated const& values) {
    return std::span(values.data(), static_cast<std::size_t>(values.size()));
  }
  template <class T>
  [[nodiscard]] std::span<T const> contents_of(int index) {
    if (message().raw_input_contents_size() == 0) {
      auto const& contents = message().inputs(index).contents();
      if constexpr (std::is_same_v<T, std::int64_t>) return span_of(contents.int64_contents());
      if constexpr (std::is_same_v<T, std::int32_t>) return span_of(contents.int_contents());
      if constexpr (std::is_same_v<T, float>) return span_of(contents.fp32_contents());
    }
    auto const& bytes = message().raw_input_contents(index);
    if (bytes.size() % sizeof(T) != 0) {
      throw RequestError(message().inputs(index).name() + " has " + std::to_string(bytes.size()) +
                         " bytes, which are no whole number of elements");
    }
    if (reinterpret_cast<std::uintptr_t>(bytes.data()) % alignof(T) == 0) {
      return {reinterpret_cast<T const*>(bytes.data()), bytes.size() / sizeof(T)};
    }
    auto& copy = owned_->copies.emplace_back(bytes.size());
    std::memcpy(copy.data(), bytes.data(), bytes.size());
    return {reinterpret_cast<T const*>(copy.data()), bytes.size() / sizeof(T)};
  }

  std::shared_ptr<Owned> owned_;
  std::map<std::string, int> by_name_;  ///< Indices of the inputs that are not taken.
};

std::vector<std::size_t> wanted_outputs(ModelInferRequest const& request, Manifest const& manifest) {
  std::vector<std::size_t> wanted;
  for (auto const& output : request.outputs()) {
    auto const found = std::ranges::find(manifest.outputs, output.name());
    if (found == manifest.outputs.end()) throw RequestError("the model has no output " + quoted(output.name()));
    auto const index = static_cast<std::size_t>(found - manifest.outputs.begin());
    // A name takes a few bytes, and an output many: a repetition would make replies of any size.
    if (std::ranges::find(wanted, index) != wanted.end()) throw RequestError(output.name() + " is wanted twice");
    wanted.push_back(index);
  }
  if (wanted.empty()) {
    for (std::size_t i = 0; i < manifest.outputs.size(); ++i) wanted.push_back(i);
  }
  return wanted;
}

}  // namespace

std::string quoted(std::string text) {
  constexpr std::size_t kMostBytes = 100;
  if (text.size() > kMostBytes) {
    auto end = kMostBytes;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0U) == 0x80U) --end;  // Whole characters of UTF-8.
    text.replace(end, std::string::npos, "...");
  }
  std::ranges::replace_if(
      text, [](char each) { return (each >= 0 && each < ' ') || each == '\x7f'; }, '?');
  return text;
}

Request parse_request(std::shared_ptr<ModelInferRequest const> message, Manifest const& manifest) {
  static_cast<void>(wanted_outputs(*message, manifest));
  Tensors tensors(std::move(message));
  Request request;
  if (manifest.has_users()) request.items = tensors.take<std::int32_t>(kItemsName);
  for (auto const& feature : manifest.features) {
    IdLists lists{.ids = tensors.take<std::int64_t>(feature.name + ".ids")};
    auto const lengths = feature.name + ".lengths";
    bool const are_ones = feature.is_single && !tensors.has(lengths);
    lists.lengths = are_ones ? tensors.ones(lists.ids.size()) : tensors.take<std::int32_t>(lengths);
    request.features.push_back(lists);
  }
  for (auto const& dense : manifest.dense_features) {
    request.dense.push_back(tensors.take<float>(dense.name, dense.width));
  }
  tensors.expect_all_taken();
  request.memory = tensors.memory();
  return request;
}

void write_response(ModelInferRequest const& request, Reply const& reply, Manifest const& manifest,
                    inference::ModelInferResponse& response) {
  response.set_model_name(request.model_name());
  response.set_model_version(reply.version);
  response.set_id(request.id());
  for (auto const index : wanted_outputs(request, manifest)) {
    auto const& rows = reply.outputs[index];
    auto& output = *response.add_outputs();
    output.set_name(manifest.outputs[index]);
    output.set_datatype("FP32");
    output.add_shape(static_cast<std::int64_t>(reply.num_items));
    for (auto const size : rows.row_shape) output.add_shape(size);
    response.add_raw_output_contents(rows.values.data(), rows.values.size() * sizeof(float));
  }
}

void describe_model(Manifest const& manifest, inference::ModelMetadataResponse& response) {
  response.add_versions(manifest.version);
  response.set_platform("headway");
  auto const add_input = [&](std::string const& name, char const* type, std::size_t width = 0) {
    auto& input = *response.add_inputs();
    input.set_name(name);
    input.set_datatype(type);
    input.add_shape(-1);
    if (width > 0) input.add_shape(static_cast<std::int64_t>(width));
  };
  if (manifest.has_users()) add_input(kItemsName, "INT32");
  for (auto const& feature : manifest.features) {
    add_input(feature.name + ".ids", "INT64");
    add_input(feature.name + ".lengths", "INT32");
  }
  for (auto const& dense : manifest.dense_features) add_input(dense.name, "FP32", dense.width);
  for (auto const& name : manifest.outputs) {
    auto& output = *response.add_outputs();
    output.set_name(name);
    output.set_datatype("FP32");
    output.add_shape(-1);
  }
}

}  // namespace headway::serving
