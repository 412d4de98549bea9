// SPDX-License-Identifier: Apache-2.0

// Messages with requests, and random changes of them, for tests of damage and for a fuzzer.
//
// Idea: most changes of the bytes of a message end in the parser of protobuf. So a message is changed by its fields: a
// tensor is renamed, dropped or doubled, its type, shape or contents change, and contents move between the two forms
// that the protocol has. Each change leaves most of a valid request as it was, so the checks behind it are reached.
//
// Example: of a request with three items, the lengths {1, 1, 1} of a feature become {1, 2147483647, 1}. They no longer
// add up to the ids, which is an error that names the tensor.
//
// Invariant: the same generator gives the same changes.
// Complexity: linear in the size of the message.

#pragma once

#include "infer_request.hpp"
#include "trial_models.hpp"
#include "trial_service.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace headway::serving {

using inference::ModelInferRequest;

/// Random requests and changes of them. The same generator gives the same messages.
class MessageChanges {
 public:
  explicit MessageChanges(std::mt19937& random) : random_(random) {}

  /// A request that fits a model.
  [[nodiscard]] ModelInferRequest valid(Manifest const& manifest) {
    ModelInferRequest message;
    message.set_model_name(manifest.has_users() ? "users" : "items");
    bool const is_raw = below(2) == 0;
    Sizes sizes{.items = 1 + below(4), .users = 1 + below(2), .tokens = 0};
    if (manifest.has_users()) {
      std::vector<std::int32_t> items(sizes.users);
      for (std::size_t i = 0; i < sizes.items; ++i) ++items[below(items.size())];
      add(message, is_raw, "items", items);
    }
    std::vector<std::vector<std::int32_t>> of_sequences(manifest.sequences.size());
    for (auto& lengths : of_sequences) lengths = random_lengths(sizes.users, false);
    for (auto const& feature : manifest.features) {
      bool const is_sequence = feature.sequence != ServedFeature::kNoSequence;
      auto const lengths =
          is_sequence ? of_sequences[feature.sequence] : random_lengths(sizes.of(feature.axis), feature.is_single);
      std::vector<std::int64_t> ids(static_cast<std::size_t>(std::accumulate(lengths.begin(), lengths.end(), 0)));
      for (auto& id : ids) id = static_cast<std::int64_t>(below(60));
      add(message, is_raw, feature.name + ".ids", ids);
      if (!feature.is_single || below(2) == 0) add(message, is_raw, feature.name + ".lengths", lengths);
    }
    for (auto const& dense : manifest.dense_features) {
      std::vector<float> values(sizes.of(dense.axis) * dense.width);
      for (auto& value : values) value = 0.25F * static_cast<float>(below(16));
      add(message, is_raw, dense.name, values, dense.width);
    }
    for (auto const& output : manifest.outputs) {
      if (below(4) == 0) message.add_outputs()->set_name(output);
    }
    return message;
  }

  void alter(ModelInferRequest& message) {
    if (message.inputs_size() == 0 || below(8) == 0) return alter_outside_of_inputs(message);
    auto const index = static_cast<int>(below(static_cast<std::size_t>(message.inputs_size())));
    auto& input = *message.mutable_inputs(index);
    switch (below(6)) {
      case 0:
        input.set_name(odd_name(message));
        break;
      case 1:
        input.set_datatype(std::array{"INT64", "INT32", "FP32", "FP64", "BYTES", ""}[below(6)]);
        break;
      case 2:
        return alter_shape(input);
      case 3:
        return alter_inputs(message, index);
      default:
        if (message.raw_input_contents_size() > index) return alter_raw(*message.mutable_raw_input_contents(index));
        return alter_contents(*input.mutable_contents());
    }
  }

 private:
  [[nodiscard]] std::size_t below(std::size_t limit) { return random_() % limit; }
  [[nodiscard]] std::int64_t odd_number() {
    static constexpr std::array<std::int64_t, 16> kOdd{0,
                                                       1,
                                                       2,
                                                       3,
                                                       5,
                                                       -1,
                                                       16,
                                                       33,
                                                       INT32_MAX,
                                                       INT32_MIN,
                                                       std::int64_t{INT32_MAX} + 1,
                                                       UINT32_MAX,
                                                       std::int64_t{1} << 32,
                                                       INT64_MAX,
                                                       INT64_MIN,
                                                       std::int64_t{1} << 62};
    return kOdd[below(kOdd.size())];
  }
  [[nodiscard]] std::string odd_name(ModelInferRequest const& message) {
    switch (below(4)) {
      case 0:
        return "";
      case 1:
        return std::string(300, 'n');
      case 2:
        return "score";
      default:
        return message.inputs(static_cast<int>(below(static_cast<std::size_t>(message.inputs_size())))).name();
    }
  }
  [[nodiscard]] std::vector<std::int32_t> random_lengths(std::size_t count, bool are_ones) {
    std::vector<std::int32_t> lengths(count, 1);
    if (are_ones) return lengths;
    for (auto& length : lengths) length = static_cast<std::int32_t>(below(4));
    return lengths;
  }

  template <class T>
  static void add(ModelInferRequest& message, bool is_raw, std::string const& name, std::vector<T> const& values,
                  std::size_t width = 0) {
    auto& input = *message.add_inputs();
    input.set_name(name);
    input.add_shape(static_cast<std::int64_t>(values.size() / std::max<std::size_t>(width, 1)));
    if (width > 0) input.add_shape(static_cast<std::int64_t>(width));
    auto& contents = *input.mutable_contents();
    if constexpr (std::is_same_v<T, std::int64_t>) {
      input.set_datatype("INT64");
      contents.mutable_int64_contents()->Add(values.begin(), values.end());
    } else if constexpr (std::is_same_v<T, std::int32_t>) {
      input.set_datatype("INT32");
      contents.mutable_int_contents()->Add(values.begin(), values.end());
    } else {
      input.set_datatype("FP32");
      contents.mutable_fp32_contents()->Add(values.begin(), values.end());
    }
    if (!is_raw) return;
    input.clear_contents();
    message.add_raw_input_contents(values.data(), values.size() * sizeof(T));
  }

  void alter_outside_of_inputs(ModelInferRequest& message) {
    switch (below(6)) {
      case 0:
        message.set_model_name(message.model_name() == "users" ? "items" : "users");
        break;
      case 1:
        message.add_outputs()->set_name(below(2) == 0 ? "score" : std::string(2000, 'o'));
        break;
      case 2:
        message.clear_outputs();
        break;
      case 3:
        message.clear_raw_input_contents();
        break;
      case 4:
        message.add_raw_input_contents(std::string(below(20), 'r'));
        break;
      default:
        (*message.mutable_parameters())["timeout"].set_int64_param(odd_number());
    }
  }

  void alter_shape(ModelInferRequest::InferInputTensor& input) {
    auto& shape = *input.mutable_shape();
    if (shape.empty() || below(4) == 0) return input.add_shape(odd_number());
    auto const index = static_cast<int>(below(static_cast<std::size_t>(shape.size())));
    switch (below(4)) {
      case 0:
        shape.RemoveLast();
        break;
      case 1:
        if (shape[index] < INT64_MAX) shape[index] = shape[index] + 1;
        break;
      default:
        shape[index] = odd_number();
    }
  }

  void alter_inputs(ModelInferRequest& message, int index) {
    auto const last = message.inputs_size() - 1;
    bool const is_raw = message.raw_input_contents_size() > last;
    switch (below(3)) {
      case 0: {  // Twice.
        auto const copy = message.inputs(index);
        *message.add_inputs() = copy;
        if (is_raw) message.add_raw_input_contents(std::string(message.raw_input_contents(index)));
        break;
      }
      case 1: {  // Not there.
        message.mutable_inputs()->DeleteSubrange(index, 1);
        if (is_raw) message.mutable_raw_input_contents()->DeleteSubrange(index, 1);
        break;
      }
      default: {  // In another order.
        message.mutable_inputs()->SwapElements(index, last);
        if (is_raw && below(4) > 0) message.mutable_raw_input_contents()->SwapElements(index, last);
      }
    }
  }

  void alter_raw(std::string& bytes) {
    switch (below(4)) {
      case 0:
        bytes.resize(below(bytes.size() + 1));
        break;
      case 1:
        bytes.append(below(9), static_cast<char>(below(256)));
        break;
      default: {
        auto const number = odd_number();
        auto const size = below(2) == 0 ? sizeof(std::int64_t) : sizeof(std::int32_t);
        if (bytes.size() < size) break;
        std::memcpy(&bytes[below(bytes.size() / size) * size], &number, size);
      }
    }
  }

  template <class Repeated>
  void alter_values(Repeated& values) {
    using Value = std::remove_cvref_t<decltype(values[0])>;
    auto const number = static_cast<Value>(odd_number());
    if (values.empty() || below(4) == 0) {
      values.Add(number);
    } else if (below(4) == 0) {
      values.RemoveLast();
    } else {
      values[static_cast<int>(below(static_cast<std::size_t>(values.size())))] = number;
    }
  }

  void alter_contents(inference::InferTensorContents& contents) {
    if (below(16) == 0) return contents.add_bytes_contents("bytes");
    if (contents.int64_contents_size() > 0) return alter_values(*contents.mutable_int64_contents());
    if (contents.fp32_contents_size() > 0) return alter_values(*contents.mutable_fp32_contents());
    alter_values(*contents.mutable_int_contents());
  }

  std::mt19937& random_;
};

/// A server of two models, to which messages are given as bytes. The name of the model chooses: "items", or the one
/// with users.
class MessageService {
 public:
  MessageService() : with_users_(service_of(model_with_users())), of_items_(service_of(model_of_items())) {}

  /// Answers a message, once in a batch of its own and once behind another request. A request that is refused must be
  /// refused by a RequestError of readable length; any other exception leaves this function.
  /// @returns why it is refused; empty if it is answered
  std::string answer(std::string_view bytes) {
    auto const message = std::make_shared<ModelInferRequest>();
    if (!message->ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return "it is no message";
    auto& [service, neighbour] = message->model_name() == "items" ? of_items_ : with_users_;
    auto const& manifest = service.manifest();
    try {
      auto request = parse_request(message, manifest);
      static_cast<void>(service.accept(request));
      auto const reply = service.answer({&request, 1}).front();
      expect_fitting(*message, reply, manifest);
      std::vector const both{neighbour, std::move(request)};
      if (service.holds(both))
        require(have_equal_bits(reply, service.answer(both).back()), "neighbours change no reply");
    } catch (RequestError const& error) {
      std::string const text = error.what();
      // gRPC sends the text in a header, and clients take headers of 8 KiB.
      bool const is_text = std::ranges::none_of(text, [](char each) { return each >= 0 && each < ' '; });
      require(!text.empty() && text.size() <= 1024 && is_text, "errors can be read: " + text.substr(0, 200));
      return text;
    }
    return "";
  }

 private:
  struct Served {
    TrialService service;
    Request neighbour;
  };

  static Served service_of(Manifest const& manifest) {
    std::mt19937 random(1);
    auto const message = std::make_shared<ModelInferRequest>(MessageChanges(random).valid(manifest));
    return {.service = TrialService(manifest, small_tables(manifest, 0, 1)),
            .neighbour = parse_request(message, manifest)};
  }

  static void expect_fitting(ModelInferRequest const& message, Reply const& reply, Manifest const& manifest) {
    inference::ModelInferResponse response;
    write_response(message, reply, manifest, response);
    require(response.outputs_size() > 0 && response.outputs_size() == response.raw_output_contents_size() &&
                static_cast<std::size_t>(response.outputs_size()) <= manifest.outputs.size(),
            "a response has each output at most once");
    for (int i = 0; i < response.outputs_size(); ++i) {
      std::size_t size = sizeof(float);
      for (auto const dim : response.outputs(i).shape()) size *= static_cast<std::size_t>(dim);
      require(response.raw_output_contents(i).size() == size, "an output has as many bytes as its shape says");
    }
  }

  static bool have_equal_bits(Reply const& one, Reply const& other) {
    return std::ranges::equal(one.outputs, other.outputs, [](OutputRows const& a, OutputRows const& b) {
      return a.values.size() == b.values.size() &&
             std::memcmp(a.values.data(), b.values.data(), a.values.size() * sizeof(float)) == 0;
    });
  }

  Served with_users_, of_items_;
};

}  // namespace headway::serving
