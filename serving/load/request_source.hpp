// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/serving/package.hpp"
#include "open_inference.pb.h"

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace headway::serving {

/// Sizes and ids of generated requests.
struct RequestLaw {
  std::vector<std::size_t> rows{64};  ///< Items of a request; each number is as likely as the others.
  std::size_t users = 1;              ///< For models with features of users.
  std::size_t history = 50;           ///< Mean length of a sequence. Lengths are uniform from 0 to twice that, or as
                                      ///< long as the model takes.
  std::size_t list_length = 1;        ///< Ids of each list of a pooled feature.
  std::uint64_t num_ids = 1'000'000;  ///< Ids of a feature are below it.
  double zipf = 1.05;                 ///< Exponent of the law of ids; 0: uniform.
};

/// Draws requests for the model of a package. The same seed gives the same requests.
class RequestSource {
 public:
  RequestSource(Manifest const& manifest, RequestLaw law, std::string model_name, std::uint64_t seed);

  /// The next request, and its number of items.
  [[nodiscard]] inference::ModelInferRequest next();

 private:
  [[nodiscard]] std::int64_t draw_id();

  Manifest const& manifest_;
  RequestLaw law_;
  std::string model_name_;
  std::mt19937_64 random_;
  double zipf_scale_;  ///< Normalises the law of ids.
};

}  // namespace headway::serving
