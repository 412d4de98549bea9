// SPDX-License-Identifier: Apache-2.0

// A rank that serves without threads: the steps of the engine for one batch, one after the other. Tests of damaged
// inputs and fuzzers use it, since a thousand requests take less time here than the start of one engine.

#pragma once

#include "batch_inputs.hpp"
#include "headway/serving/row_fetcher.hpp"
#include "headway/serving/served_model.hpp"
#include "row_sum_model.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace headway::serving {

class TrialService {
 public:
  /// @throws PackageError as ServedModel does
  TrialService(Manifest manifest, std::vector<embedding::ReadTable> tables)
      : model_(manifest, std::make_shared<RowSumModel>(manifest)), fetcher_(make_pairwise_fetcher(nullptr, nullptr)) {
    fetcher_->add_version(manifest.number, std::move(tables));
  }

  [[nodiscard]] Manifest const& manifest() const { return model_.manifest(); }
  /// Checks a request as the engine does when it comes. @throws RequestError
  [[nodiscard]] Sizes accept(Request const& request) const {
    auto const sizes = sizes_of(request, manifest());
    if (!model_.room().holds(sizes)) throw RequestError("the request is larger than the largest bucket");
    return sizes;
  }
  /// Do the requests fit into one batch?
  [[nodiscard]] bool holds(std::span<Request const> requests) const { return model_.room().holds(total(requests)); }
  /// Serves accepted requests as one batch. @returns their replies
  [[nodiscard]] std::vector<Reply> answer(std::span<Request const> requests) {
    BatchInputs inputs(manifest(), model_.merged(), model_.part_for(total(requests)));
    std::vector<std::size_t> first_items;
    for (auto const& request : requests) first_items.push_back(inputs.add(request, accept(request)));
    auto const fetch = fetcher_->begin(manifest().number, inputs.features());
    require(fetch->poll(), "a rank that is alone waits for nobody");
    auto const outputs = model_.dense()->run(inputs.part(), inputs.take_rows(*fetch));
    std::vector<Reply> replies;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      auto& reply = replies.emplace_back();
      reply.version = manifest().version;
      reply.num_items = accept(requests[i]).items;
      for (std::size_t output = 0; output < outputs.size(); ++output) {
        auto const width = output + 1;  // See RowSumModel.
        auto const begin = outputs[output].values.begin() + static_cast<std::ptrdiff_t>(first_items[i] * width);
        reply.outputs.push_back({.values = {begin, begin + static_cast<std::ptrdiff_t>(reply.num_items * width)},
                                 .row_shape = outputs[output].row_shape});
      }
    }
    return replies;
  }

 private:
  [[nodiscard]] Sizes total(std::span<Request const> requests) const {
    Sizes sizes;
    for (auto const& request : requests) sizes += accept(request);
    return sizes;
  }

  ServedModel model_;
  std::unique_ptr<RowFetcher> fetcher_;
};

/// A request with its arrays, for any model.
struct OwnedRequest {
  std::vector<std::vector<std::int64_t>> ids{};
  std::vector<std::vector<std::int32_t>> lengths{};
  std::vector<std::vector<float>> dense{};
  std::vector<std::int32_t> items{};

  [[nodiscard]] Request view() const {
    Request request;
    for (std::size_t i = 0; i < ids.size(); ++i) request.features.push_back({.ids = ids[i], .lengths = lengths[i]});
    for (auto const& values : dense) request.dense.emplace_back(values);
    request.items = items;
    return request;
  }
};

/// A request for one item of one user, with one id in each list.
inline OwnedRequest smallest_request(Manifest const& manifest) {
  OwnedRequest request;
  request.ids.assign(manifest.features.size(), {7});
  request.lengths.assign(manifest.features.size(), {1});
  for (auto const& dense : manifest.dense_features) request.dense.emplace_back(dense.width, 0.5F);
  if (manifest.has_users()) request.items = {1};
  return request;
}

}  // namespace headway::serving
