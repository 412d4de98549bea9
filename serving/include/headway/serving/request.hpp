// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/serving/package.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace headway::serving {

/// A request does not fit the model. The message names the tensor and the limit.
class RequestError : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

/// The ids of one feature: a list for each user or item.
struct IdLists {
  std::span<std::int64_t const> ids{};
  std::span<std::int32_t const> lengths{};  ///< (users or items) They add up to the ids.
};

/// Items to score, those of the first user first. Arrays belong to `memory`.
struct Request {
  std::vector<IdLists> features{};              ///< (Manifest::features)
  std::vector<std::span<float const>> dense{};  ///< (Manifest::dense_features) (users or items, width) each.
  std::span<std::int32_t const> items{};        ///< (users) Items of each user; empty if the model has no users.
  std::shared_ptr<void const> memory{};         ///< Owns the arrays.
};

/// Checks a request.
/// @throws RequestError
[[nodiscard]] Sizes sizes_of(Request const& request, Manifest const& manifest);

/// How a request ended.
enum class Outcome : std::uint8_t {
  kAnswered,
  kInvalid,           ///< It does not fit the model.
  kQueueFull,         ///< Too many rows or bytes wait.
  kDeadlineExceeded,  ///< Its deadline has passed, or cannot be met.
  kUnavailable,       ///< The rank stops, or has lost a peer.
  kFailed,            ///< The compiled model has thrown an exception.
};

/// Rows of an output of the model.
struct OutputRows {
  std::vector<float> values{};  ///< (items, row_shape...)
  std::vector<std::int64_t> row_shape{};
};

struct Reply {
  Outcome outcome = Outcome::kAnswered;
  std::string error{};    ///< Empty if it is answered.
  std::string version{};  ///< Version of the model that has answered.
  std::size_t num_items = 0;
  std::vector<OutputRows> outputs{};  ///< (Manifest::outputs)
};

/// Gets the reply to a request. It may run on any thread, must not throw, and should be quick.
using ReplyFunction = std::function<void(Reply&& reply)>;

}  // namespace headway::serving
