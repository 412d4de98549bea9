// SPDX-License-Identifier: Apache-2.0

#include "headway/hybrid/worker_client.hpp"

#include <utility>

namespace headway::hybrid {

WorkerClient::WorkerClient(std::string name, std::unique_ptr<comm::Group> link, std::chrono::milliseconds timeout)
    : name_(std::move(name)), timeout_(timeout), requester_(std::move(link), timeout) {}

Requester::CallPtr WorkerClient::start(WorkerRequest kind, std::uint64_t generation, Body body) {
  return with_name(name_, [&] {
    return requester_.start(
        {.kind = static_cast<std::uint32_t>(kind), .generation = generation, .body = std::move(body)});
  });
}

Body WorkerClient::await(Requester::Call& call, std::string const& missing, WhileWaiting const& while_waiting) {
  return with_name(name_, [&] { return requester_.await(call, timeout_, missing, while_waiting); });
}

void WorkerClient::set_up(std::span<embedding::MergedTable const> tables, std::span<FeatureSetting const> features,
                          Compression compression, std::span<std::size_t const> small) {
  auto const call = start(WorkerRequest::kSetUp, 0, encode_set_up(tables, features, compression, small));
  static_cast<void>(await(*call, "it was not set up"));
  compression_ = compression;
  half_dims_ = half_dims_of(tables, compression);
}

void WorkerClient::begin_generation(std::uint64_t generation, StepLedger::Options const& options, std::uint64_t token) {
  auto const call = start(WorkerRequest::kBeginGeneration, generation, encode_generation(options, token));
  static_cast<void>(await(*call, "no generation was begun"));
}

void WorkerClient::submit(BatchName name, std::span<FeatureIds const> features, WhileWaiting const& while_waiting) {
  auto const call = start(WorkerRequest::kSubmit, 0, encode_submit(name, features, compression_));
  static_cast<void>(await(*call, to_string(name) + ": no room for it was made", while_waiting));
}

Requester::CallPtr WorkerClient::start_fetch(std::uint64_t generation, BatchName name, BatchId batch) {
  return start(WorkerRequest::kFetch, generation, encode_fetch(name, batch));
}

Embeddings WorkerClient::wait_embeddings(Requester::Call& fetch, BatchId batch, WhileWaiting const& while_waiting) {
  return decode_embeddings(await(fetch, to_string(batch) + ": no embeddings came", while_waiting), half_dims_);
}

Requester::CallPtr WorkerClient::start_gradients(std::uint64_t generation, BatchId batch,
                                                 std::span<PartValues const> gradients, Embeddings const& embeddings) {
  std::vector<PartValues> parts(gradients.begin(), gradients.end());
  std::vector<std::vector<float>> sums(parts.size());
  for (std::size_t merged = 0; merged < embeddings.distinct_bags.size() && merged < parts.size(); ++merged) {
    auto const& distinct = embeddings.distinct_bags[merged];
    if (distinct.empty() || parts[merged].gradients.empty()) continue;
    base::expects(parts[merged].gradients.size() == distinct.size() * half_dims_[merged],
                  to_string(batch) + ": there is not one gradient for each bag");
    sums[merged] = sum_distinct(distinct, half_dims_[merged], parts[merged].gradients);
    parts[merged].gradients = sums[merged];
  }
  return start(WorkerRequest::kGradients, generation, encode_part(batch, parts, half_dims_));
}

Requester::CallPtr WorkerClient::start_drop(std::uint64_t generation, BatchId batch, LossCause cause) {
  return start(WorkerRequest::kDrop, generation, encode_void(batch, cause));
}

bool WorkerClient::finish(Requester::Call& end, BatchId batch, WhileWaiting const& while_waiting) {
  return await(end, to_string(batch) + ": its gradients were not taken", while_waiting).empty();
}

Embeddings WorkerClient::read(BatchName name, WhileWaiting const& while_waiting) {
  auto const call = start(WorkerRequest::kRead, 0, encode_fetch(name, {}));
  return decode_embeddings(await(*call, to_string(name) + ": no embeddings came", while_waiting), half_dims_);
}

void WorkerClient::end_at(std::uint64_t generation, std::uint64_t step) {
  auto const call = start(WorkerRequest::kEndAt, generation, encode_batch({.step = step}));
  static_cast<void>(await(*call, "the end was not taken"));
}

WorkerStatus WorkerClient::status() {
  auto const call = start(WorkerRequest::kStatus, 0, {});
  return decode_worker_status(await(*call, "it did not tell its status"));
}

}  // namespace headway::hybrid
