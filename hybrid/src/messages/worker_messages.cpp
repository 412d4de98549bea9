// SPDX-License-Identifier: Apache-2.0

// Layout of the bodies, in words of 64 bits (words.hpp).
//
//   set up       length of the tables, tables (server_messages.cpp); number of features; for each: table, pooling,
//                length of the name, name
//   submit       loader, number; for each feature: number of lists, of ids, and of weights; lengths, ids, weights
//   fetch, read  loader, number, step, worker
//   embeddings   number of features, bags of each; number of merged tables; for each: number of floats, floats
// Gradients, drops and generations are those of server_messages.cpp.

#include "headway/hybrid/worker_messages.hpp"

#include "messages/words.hpp"

namespace headway::hybrid {

namespace {

constexpr std::uint64_t kMostFeatures = 1 << 16, kMostNameBytes = 1 << 12, kMostElements = std::uint64_t{1} << 31;

BatchName read_name(WordReader& from) {
  BatchName name;
  name.loader = from.word();
  name.number = from.word();
  return name;
}

template <class Element>
std::vector<Element> copy_of(std::span<Element const> elements) {
  return {elements.begin(), elements.end()};
}

}  // namespace

std::string to_string(BatchName name) {
  return "batch " + std::to_string(name.number) + " of loader " + std::to_string(name.loader);
}

Body encode_set_up(std::span<embedding::MergedTable const> tables, std::span<FeatureSetting const> features) {
  WordWriter to;
  auto const encoded = encode_tables(tables);
  to.word(encoded.size()).array(std::span<std::byte const>(encoded)).word(features.size());
  for (auto const& each : features) {
    to.word(each.table).word(static_cast<std::uint64_t>(each.pooling)).word(each.name.size());
    to.array(std::span<char const>(each.name));
  }
  return to.take();
}

std::pair<std::vector<embedding::MergedTable>, std::vector<FeatureSetting>> decode_set_up(
    std::span<std::byte const> body) {
  WordReader from(body);
  auto tables = decode_tables(from.array<std::byte>(from.word()));
  std::vector<FeatureSetting> features;
  auto const count = from.word_up_to(kMostFeatures, "the number of features");
  for (std::uint64_t i = 0; i < count; ++i) {
    FeatureSetting feature;
    feature.table = static_cast<std::uint32_t>(from.word_up_to(0xffffffff, "a table"));
    feature.pooling = static_cast<embedding::Pooling>(
        from.word_up_to(static_cast<std::uint64_t>(embedding::Pooling::kMean), "the pooling"));
    auto const name = from.array<char>(from.word_up_to(kMostNameBytes, "the length of a name"));
    feature.name.assign(name.begin(), name.end());
    features.push_back(std::move(feature));
  }
  from.expect_end();
  return {std::move(tables), std::move(features)};
}

Body encode_submit(BatchName name, std::span<FeatureIds const> features) {
  WordWriter to;
  to.word(name.loader).word(name.number);
  for (auto const& each : features) {
    to.word(each.lengths.size()).word(each.ids.size()).word(each.weights.size());
    to.array(each.lengths).array(each.ids).array(each.weights);
  }
  return to.take();
}

std::pair<BatchName, std::vector<FeatureIds>> decode_submit(std::span<std::byte const> body, std::size_t num_features) {
  WordReader from(body);
  auto const name = read_name(from);
  std::vector<FeatureIds> features;
  for (std::size_t i = 0; i < num_features; ++i) {
    auto const num_lists = from.word_up_to(kMostElements, "the number of lists");
    auto const num_ids = from.word_up_to(kMostElements, "the number of ids");
    auto const num_weights = from.word_up_to(kMostElements, "the number of weights");
    base::expects(num_weights == 0 || num_weights == num_ids, to_string(name) + ": there is not one weight per id");
    FeatureIds feature;
    feature.lengths = from.array<std::int64_t>(num_lists);
    feature.ids = from.array<std::int64_t>(num_ids);
    feature.weights = from.array<float>(num_weights);
    features.push_back(feature);
  }
  from.expect_end();
  return {name, std::move(features)};
}

Body encode_fetch(BatchName name, BatchId batch) {
  WordWriter to;
  to.word(name.loader).word(name.number).word(batch.step).word(batch.worker);
  return to.take();
}

std::pair<BatchName, BatchId> decode_fetch(std::span<std::byte const> body) {
  WordReader from(body);
  auto const name = read_name(from);
  BatchId batch;
  batch.step = from.word();
  batch.worker = static_cast<std::uint32_t>(from.word_up_to(0xffffffff, "the dense worker"));
  from.expect_end();
  return {name, batch};
}

Body encode_embeddings(Embeddings const& embeddings) {
  WordWriter to;
  to.word(embeddings.num_bags.size()).array(std::span<std::uint64_t const>(embeddings.num_bags));
  to.word(embeddings.values.size());
  for (auto const& each : embeddings.values) to.word(each.size()).array(std::span<float const>(each));
  return to.take();
}

Embeddings decode_embeddings(std::span<std::byte const> body) {
  WordReader from(body);
  Embeddings embeddings;
  embeddings.num_bags = copy_of(from.array<std::uint64_t>(from.word_up_to(kMostFeatures, "the number of features")));
  auto const count = from.word_up_to(kMostFeatures, "the number of merged tables");
  for (std::uint64_t i = 0; i < count; ++i) embeddings.values.push_back(copy_of(from.array<float>(from.word())));
  from.expect_end();
  return embeddings;
}

}  // namespace headway::hybrid
