// SPDX-License-Identifier: Apache-2.0

// Layout of the bodies, in words of 64 bits (words.hpp).
//
//   set up       length of the configuration, configuration (server_messages.cpp); number of features
//                for each feature: table, pooling, length of the name, name; number of small tables, merged tables
//   submit       loader, number; for each feature: number of lists, of ids, and of weights; lengths, ids, weights
//                with compressed ids: number of bytes and encoded lists (kernels/id_lists.hpp) in place of both
//   fetch, read  loader, number, step, worker
//   status       the numbers of WorkerStatus in their order; number of losses, losses; number of servers; for each:
//                name, its numbers
//   embeddings   number of features, bags of each; number of merged tables; for each: number of floats, floats
//                with compressed values, for each merged table: number of bags, or 0 if all are distinct; number of
//                bytes and packed indices of distinct bags; number of values, halves and exponents of distinct bags
//                then number of features of small tables; for each: number of ids, lists and weights, row indices
//                (32 bits), lengths, weights; number of small tables, rows of each (indexed_rows.cpp)
// Gradients, drops (void notices) and generations are those of server_messages.cpp, also the answer to gradients.

#include "headway/hybrid/worker_messages.hpp"

#include "messages/packed_arrays.hpp"
#include "messages/row_words.hpp"
#include "messages/words.hpp"

#include <algorithm>
#include <array>

namespace headway::hybrid {

namespace {

constexpr std::uint64_t kMostFeatures = 1 << 16, kMostNameBytes = 1 << 12, kMostElements = std::uint64_t{1} << 31;
constexpr std::uint64_t kMostServers = 1 << 16;

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

auto numbers_of(auto& status) {
  return std::array{&status.generation,
                    &status.submitted,
                    &status.fetched,
                    &status.trained,
                    &status.read,
                    &status.dropped,
                    &status.waiting_loaders,
                    &status.buffered,
                    &status.buffered_bytes,
                    &status.in_flight,
                    &status.loader_waits,
                    &status.loader_wait_ns,
                    &status.answered,
                    &status.messages.plain_ids,
                    &status.messages.sent_ids,
                    &status.messages.plain_values,
                    &status.messages.sent_values};
}

}  // namespace

std::string to_string(BatchName name) {
  return "batch " + std::to_string(name.number) + " of loader " + std::to_string(name.loader);
}

Body encode_set_up(std::span<embedding::MergedTable const> tables, std::span<FeatureSetting const> features,
                   Compression compression, std::span<std::size_t const> small) {
  WordWriter to;
  auto const encoded = encode_configuration(tables, compression);
  to.word(encoded.size()).array(std::span<std::byte const>(encoded)).word(features.size());
  for (auto const& each : features) {
    to.word(each.table).word(static_cast<std::uint64_t>(each.pooling)).text(each.name);
  }
  to.word(small.size());
  for (auto const merged : small) to.word(merged);
  return to.take();
}

DecodedSetUp decode_set_up(std::span<std::byte const> body) {
  WordReader from(body);
  auto const configuration = decode_configuration(from.array<std::byte>(from.word()));
  DecodedSetUp set_up{.tables = decode_tables(configuration.tables), .compression = configuration.compression};
  auto const count = from.word_up_to(kMostFeatures, "the number of features");
  for (std::uint64_t i = 0; i < count; ++i) {
    FeatureSetting feature;
    feature.table = static_cast<std::uint32_t>(from.word_up_to(0xffffffff, "a table"));
    feature.pooling = static_cast<embedding::Pooling>(
        from.word_up_to(static_cast<std::uint64_t>(embedding::Pooling::kMean), "the pooling"));
    feature.name = from.text(kMostNameBytes, "the length of a name");
    set_up.features.push_back(std::move(feature));
  }
  auto const num_small = from.word_up_to(set_up.tables.size(), "the number of small tables");
  for (std::uint64_t i = 0; i < num_small; ++i) {
    set_up.small.push_back(from.word());
    base::expects(set_up.small.back() < set_up.tables.size(), "a small table is not there");
  }
  from.expect_end();
  return set_up;
}

Body encode_submit(BatchName name, std::span<FeatureIds const> features, Compression compression) {
  WordWriter to;
  to.word(name.loader).word(name.number);
  for (auto const& each : features) {
    to.word(each.lengths.size()).word(each.ids.size()).word(each.weights.size());
    if (compression.ids) {
      std::vector<std::byte> encoded;
      kernels::append_id_lists(each.lengths, each.ids, encoded);
      write_bytes(to, encoded);
    } else {
      to.array(each.lengths).array(each.ids);
    }
    to.array(each.weights);
  }
  return to.take();
}

BatchName decode_submit_name(std::span<std::byte const> body) {
  WordReader from(body);
  return read_name(from);
}

DecodedSubmit decode_submit(std::span<std::byte const> body, std::size_t num_features, Compression compression,
                            std::size_t most_bytes) {
  WordReader from(body);
  DecodedSubmit submit{.name = read_name(from)};
  std::size_t num_bytes = 0;
  for (std::size_t i = 0; i < num_features; ++i) {
    auto const num_lists = from.word_up_to(kMostElements, "the number of lists");
    auto const num_ids = from.word_up_to(kMostElements, "the number of ids");
    auto const num_weights = from.word_up_to(kMostElements, "the number of weights");
    base::expects(num_weights == 0 || num_weights == num_ids,
                  to_string(submit.name) + ": there is not one weight per id");
    FeatureIds feature;
    if (compression.ids) {
      auto const plain_bytes = (num_lists + num_ids) * sizeof(std::int64_t);
      num_bytes += plain_bytes;
      base::expects(num_bytes <= most_bytes, to_string(submit.name) + ": its ids have over " +
                                                 std::to_string(most_bytes) + " bytes, which is the limit");
      auto const encoded = read_bytes(from);
      auto& lists = submit.storage.emplace_back();
      base::expects(kernels::decode_id_lists(encoded, num_lists, num_ids, lists).empty(),
                    to_string(submit.name) + ": lists of ids are too long");
      feature.lengths = lists.lengths;
      feature.ids = lists.ids;
      submit.saved_bytes += static_cast<std::int64_t>(plain_bytes) -
                            static_cast<std::int64_t>((encoded.size() + 7) / 8 * 8 + sizeof(std::uint64_t));
    } else {
      feature.lengths = from.array<std::int64_t>(num_lists);
      feature.ids = from.array<std::int64_t>(num_ids);
    }
    feature.weights = from.array<float>(num_weights);
    submit.features.push_back(feature);
  }
  from.expect_end();
  return submit;
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

namespace {

/// The first bag of each index.
std::vector<std::size_t> first_bags(std::span<std::uint32_t const> distinct_bags) {
  std::vector<std::size_t> first;
  for (std::size_t bag = 0; bag < distinct_bags.size(); ++bag) {
    if (distinct_bags[bag] == first.size()) first.push_back(bag);
  }
  return first;
}

/// Writes the values of distinct bags, and which ones they are.
void write_distinct(WordWriter& to, std::span<std::uint32_t const> distinct_bags, std::span<float const> values,
                    std::size_t dim) {
  to.word(distinct_bags.size());
  std::vector<std::byte> packed;
  if (!distinct_bags.empty()) append_packed(distinct_bags, packed);
  write_bytes(to, packed);
  if (distinct_bags.empty()) return write_rows(to, values, dim);
  std::vector<float> distinct;
  for (auto const bag : first_bags(distinct_bags)) {
    auto const row = values.subspan(bag * dim, dim);
    distinct.insert(distinct.end(), row.begin(), row.end());
  }
  write_rows(to, distinct, dim);
}

void read_distinct(WordReader& from, std::size_t dim, std::size_t& num_bytes, std::size_t most_bytes,
                   Embeddings& embeddings) {
  auto const num_bags = from.word_up_to(kMostElements, "the number of bags");
  num_bytes += num_bags * dim * sizeof(float);
  base::expects(num_bytes <= most_bytes, "embeddings of bags have over " + std::to_string(most_bytes) + " bytes");
  auto const packed = read_bytes(from);
  RowsView const rows(from, dim);
  std::vector<float> distinct(rows.size());
  rows.copy_to(distinct);
  auto& distinct_bags = embeddings.distinct_bags.emplace_back(num_bags);
  if (num_bags == 0) {
    base::expects(packed.empty(), "there are indices without bags");
    embeddings.values.push_back(std::move(distinct));
    return;
  }
  base::expects(kernels::unpack(packed, std::span(distinct_bags)).empty(), "indices of bags are too long");
  std::size_t next = 0;
  auto& values = embeddings.values.emplace_back(num_bags * dim);
  for (std::size_t bag = 0; bag < num_bags; ++bag) {
    auto const index = distinct_bags[bag];
    base::expects(index <= next && index < distinct.size() / dim, "an index of a bag is wrong");
    if (index == next) ++next;
    std::copy_n(&distinct[index * dim], dim, &values[bag * dim]);
  }
  base::expects(next == distinct.size() / dim, "there are embeddings without a bag");
}

}  // namespace

std::size_t num_distinct(std::span<std::uint32_t const> distinct_bags) {
  return distinct_bags.empty() ? 0 : std::ranges::max(distinct_bags) + std::size_t{1};
}

std::vector<float> sum_distinct(std::span<std::uint32_t const> distinct_bags, std::size_t dim,
                                std::span<float const> gradients) {
  std::vector<float> sums(num_distinct(distinct_bags) * dim);
  std::size_t next = 0;
  for (std::size_t bag = 0; bag < distinct_bags.size(); ++bag) {
    auto const gradient = gradients.subspan(bag * dim, dim);
    auto const sum = std::span(sums).subspan(distinct_bags[bag] * dim, dim);
    if (distinct_bags[bag] == next) {
      std::ranges::copy(gradient, sum.begin());
      ++next;
    } else {
      for (std::size_t column = 0; column < dim; ++column) sum[column] += gradient[column];
    }
  }
  return sums;
}

std::vector<float> spread_distinct(std::span<std::uint32_t const> distinct_bags, std::size_t dim,
                                   std::span<float const> sums) {
  std::vector<float> gradients(distinct_bags.size() * dim);
  std::size_t next = 0;
  for (auto const bag : first_bags(distinct_bags)) {
    std::copy_n(&sums[next++ * dim], dim, &gradients[bag * dim]);
  }
  return gradients;
}

namespace {

void write_small(WordWriter& to, Embeddings const& embeddings) {
  to.word(embeddings.small_features.size());
  for (auto const& [indices, lengths, weights] : embeddings.small_features) {
    to.word(indices.size()).word(lengths.size()).word(weights.size());
    to.array(std::span<std::uint32_t const>(indices)).array(std::span<std::int64_t const>(lengths));
    to.array(std::span<float const>(weights));
  }
  to.word(embeddings.small_rows.size());
  for (auto const& rows : embeddings.small_rows) write_indexed_rows(to, rows);
}

void read_small(WordReader& from, Embeddings& embeddings) {
  auto const num_features = from.word_up_to(kMostFeatures, "the number of features of small tables");
  for (std::uint64_t i = 0; i < num_features; ++i) {
    auto const num_ids = from.word_up_to(kMostElements, "the number of row indices");
    auto const num_lists = from.word_up_to(kMostElements, "the number of lists");
    auto const num_weights = from.word_up_to(kMostElements, "the number of weights");
    auto& feature = embeddings.small_features.emplace_back();
    feature.indices = copy_of(from.array<std::uint32_t>(num_ids));
    feature.lengths = copy_of(from.array<std::int64_t>(num_lists));
    feature.weights = copy_of(from.array<float>(num_weights));
  }
  auto const num_tables = from.word_up_to(kMostFeatures, "the number of small tables");
  for (std::uint64_t i = 0; i < num_tables; ++i) embeddings.small_rows.push_back(read_indexed_rows(from));
}

}  // namespace

std::size_t small_bytes_of(Embeddings const& embeddings) {
  WordWriter to;
  write_small(to, embeddings);
  return to.take().size();
}

Body encode_embeddings(Embeddings const& embeddings, std::span<std::size_t const> half_dims) {
  WordWriter to;
  to.word(embeddings.num_bags.size()).array(std::span<std::uint64_t const>(embeddings.num_bags));
  to.word(embeddings.values.size());
  for (std::size_t i = 0; i < embeddings.values.size(); ++i) {
    if (half_dims.empty()) {
      write_rows(to, embeddings.values[i], 0);
    } else {
      write_distinct(to, embeddings.distinct_bags[i], embeddings.values[i], half_dims[i]);
    }
  }
  write_small(to, embeddings);
  return to.take();
}

Embeddings decode_embeddings(std::span<std::byte const> body, std::span<std::size_t const> half_dims,
                             std::size_t most_bytes) {
  WordReader from(body);
  Embeddings embeddings;
  embeddings.num_bags = copy_of(from.array<std::uint64_t>(from.word_up_to(kMostFeatures, "the number of features")));
  auto const count = from.word_up_to(kMostFeatures, "the number of merged tables");
  base::expects(half_dims.empty() || half_dims.size() == count, "there are embeddings of other merged tables");
  std::size_t num_bytes = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    if (half_dims.empty()) {
      embeddings.values.push_back(copy_of(from.array<float>(from.word())));
    } else {
      read_distinct(from, half_dims[i], num_bytes, most_bytes, embeddings);
    }
  }
  read_small(from, embeddings);
  from.expect_end();
  return embeddings;
}

Body encode_worker_status(WorkerStatus const& status) {
  WordWriter to;
  for (auto const* const number : numbers_of(status)) to.word(*number);
  to.word(status.lost.size()).array(std::span<std::uint64_t const>(status.lost)).word(status.servers.size());
  for (auto const& each : status.servers) {
    to.text(each.name).word(each.num_last).word(each.last_ns).word(each.bytes_sent).word(each.bytes_received);
  }
  return to.take();
}

WorkerStatus decode_worker_status(std::span<std::byte const> body) {
  WordReader from(body);
  WorkerStatus status;
  for (auto* const number : numbers_of(status)) *number = from.word();
  status.lost = copy_of(from.array<std::uint64_t>(from.word_up_to(kNumLossCauses, "the number of causes")));
  auto const num_servers = from.word_up_to(kMostServers, "the number of servers");
  for (std::uint64_t i = 0; i < num_servers; ++i) {
    auto& each = status.servers.emplace_back();
    each.name = from.text(kMostNameBytes, "a name");
    for (auto* const number : {&each.num_last, &each.last_ns, &each.bytes_sent, &each.bytes_received}) {
      *number = from.word();
    }
  }
  from.expect_end();
  return status;
}

}  // namespace headway::hybrid
