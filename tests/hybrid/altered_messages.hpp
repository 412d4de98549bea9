// SPDX-License-Identifier: Apache-2.0
#pragma once

// Valid requests to parameter servers and embedding workers, changes of their bytes, and roles that answer them.
//
// Idea: an input is a list of requests. Most are valid, so the code behind the first checks is reached; some have
// changed bytes, or come twice or too late. Roles must refuse them or answer them, and still answer a status at the
// end.
//
// Example: a server gets tables, a generation, a lookup whose number of keys was changed to 2^63, and a gradient for
// it. It refuses the last two.
//
// Invariants: no error text has an id in it. Ids of valid requests are above kFirstId, so their digits are rare, and
//   changed words are others.
// Complexity: linear in the bytes of the requests.

#include "headway/hybrid/checkpoint_messages.hpp"
#include "headway/hybrid/embedding_worker.hpp"
#include "random_batch.hpp"
#include "server_fixture.hpp"

#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace headway::hybrid {

inline constexpr std::uint64_t kFirstId = 77'777'777'777'000;
inline constexpr char const* kDigitsOfIds = "77777777777";
inline constexpr std::size_t kTrialDim = 2;

/// A request of a list.
struct TrialRequest {
  std::uint8_t kind = 0, generation = 1;
  std::vector<std::byte> body{};

  bool operator==(TrialRequest const&) const = default;
};

/// Bytes of a list: kind, generation, size in 16 bits and body of each request.
inline std::vector<std::byte> encode_list(std::span<TrialRequest const> requests) {
  std::vector<std::byte> bytes;
  for (auto const& each : requests) {
    auto const size = std::min<std::size_t>(each.body.size(), 0xffff);
    for (auto const value : {std::size_t{each.kind}, std::size_t{each.generation}, size & 0xff, size >> 8}) {
      bytes.push_back(static_cast<std::byte>(value));
    }
    bytes.insert(bytes.end(), each.body.begin(), each.body.begin() + static_cast<std::ptrdiff_t>(size));
  }
  return bytes;
}

/// Any bytes are a list; the last body may be shorter than its size says.
inline std::vector<TrialRequest> decode_list(std::span<std::byte const> bytes) {
  std::vector<TrialRequest> requests;
  while (bytes.size() >= 4) {
    auto const at = [&](std::size_t index) { return std::to_integer<std::uint8_t>(bytes[index]); };
    TrialRequest request{.kind = at(0), .generation = at(1)};
    auto const size = std::min<std::size_t>(at(2) + 256U * at(3), bytes.size() - 4);
    request.body.assign(bytes.begin() + 4, bytes.begin() + 4 + static_cast<std::ptrdiff_t>(size));
    bytes = bytes.subspan(4 + size);
    requests.push_back(std::move(request));
  }
  return requests;
}

/// Draws lists and changes them.
class ListChanges {
 public:
  ListChanges(std::mt19937& random, bool is_of_worker) : random_(random), is_of_worker_(is_of_worker) {}

  /// A list that begins with tables and a generation.
  std::vector<TrialRequest> valid(std::size_t count) {
    std::vector<TrialRequest> list;
    for (std::size_t i = 0; i < count; ++i) list.push_back(is_of_worker_ ? of_worker(i) : of_server(i));
    return list;
  }
  void alter(std::vector<TrialRequest>& list) {
    auto const any = [&] { return list.begin() + static_cast<std::ptrdiff_t>(random_() % list.size()); };
    if (list.empty()) return list.push_back(next());
    switch (random_() % 8) {
      case 0:
        list.insert(any(), next());
        return;
      case 1:
        list.insert(any(), TrialRequest(*any()));
        return;
      case 2:
        list.erase(any());
        return;
      case 3:
        std::iter_swap(any(), any());
        return;
      case 4:
        any()->generation = static_cast<std::uint8_t>(random_() % 3);
        return;
      default:
        alter_body(any()->body);
    }
  }

 private:
  [[nodiscard]] std::uint64_t below(std::uint64_t end) { return random_() % end; }
  TrialRequest next() { return is_of_worker_ ? of_worker(2 + below(8)) : of_server(2 + below(8)); }

  /// Words and bytes change. Sizes and counts are words, so some of them become very large.
  void alter_body(std::vector<std::byte>& body) {
    if (body.empty()) return body.resize(1 + below(16));
    if (below(8) == 0) return body.resize(below(2 * body.size()));
    if (below(3) == 0 || body.size() < sizeof(std::uint64_t)) {
      body[below(body.size())] ^= static_cast<std::byte>(1 + below(255));
      return;
    }
    constexpr std::uint64_t kWords[]{0,
                                     1,
                                     2,
                                     7,
                                     0xffff,
                                     0xffffffff,
                                     std::uint64_t{1} << 32,
                                     std::uint64_t{1} << 61,
                                     std::uint64_t{1} << 63,
                                     ~std::uint64_t{0}};
    auto const word = kWords[below(std::size(kWords))];
    auto const at = below(body.size() / sizeof word) * sizeof word;
    std::memcpy(body.data() + at, &word, sizeof word);
  }

  static TrialRequest request(auto kind, std::span<std::byte const> body) {
    return {.kind = static_cast<std::uint8_t>(kind), .generation = 1, .body = {body.begin(), body.end()}};
  }
  [[nodiscard]] StepLedger::Options rules() {
    bool const shares_clock = below(4) > 0;
    return {.num_workers = 1 + static_cast<std::uint32_t>(below(2)),
            .staleness = static_cast<std::uint32_t>(below(3)),
            .is_exact = shares_clock && below(4) == 0,
            .sums_parts = shares_clock && below(2) == 0,
            .shares_clock = shares_clock};
  }
  [[nodiscard]] BatchId batch() { return {.step = below(4), .worker = static_cast<std::uint32_t>(below(2))}; }

  TrialRequest of_server(std::size_t index) {
    if (index == 0) return request(ServerRequest::kConfigure, encode_configuration(one_table(kTrialDim), {}));
    if (index == 1) return request(ServerRequest::kBeginGeneration, encode_generation(rules(), 5));
    std::vector<std::uint64_t> ids;
    for (std::uint64_t i = 0; i < 1 + below(4); ++i) ids.push_back(kFirstId + i);
    std::vector<std::uint32_t> const tables(ids.size(), kTable), counts(ids.size(), 1);
    KeyList const keys{.ids = ids, .tables = tables, .counts = counts};
    std::vector<float> const gradients(ids.size() * kTrialDim, 0.5F);
    PartValues const part{.rate = 0.1, .gradients = gradients};
    RowQuery const query{.merged = 0, .ids = ids};
    auto const count = ids.size();
    RowsToStore const stored{.rows = {.indices = std::vector<std::uint32_t>(count),
                                      .are_stored = std::vector<std::uint32_t>(count, 1),
                                      .counts = std::vector<std::uint32_t>(count, 2),
                                      .steps = std::vector<std::uint32_t>(count, 3),
                                      .embeddings = gradients}};
    switch (below(12)) {
      case 10:
        return request(ServerRequest::kRows, encode_row_queries({&query, 1}));
      case 11:
        return request(ServerRequest::kStoreRows, encode_rows_to_store({&stored, 1}));
      case 0:
        return request(ServerRequest::kVoid, encode_void(batch(), LossCause::kSkipped));
      case 1:
        return request(ServerRequest::kRead, encode_lookup(batch(), {&keys, 1}));
      case 2:
        return request(ServerRequest::kEndAt, encode_batch({.step = below(8)}));
      case 3:
        return request(ServerRequest::kBeginGeneration, encode_generation(rules(), below(2)));
      case 4:
        return request(ServerRequest::kLoad,
                       encode_load({.step = below(8),
                                    .count = 1 + static_cast<std::uint32_t>(below(2)),
                                    .sources = {},
                                    .tables = {{.table_ids = {kTable}, .initial_state = std::nullopt}}}));
      case 5:
        return request(ServerRequest::kTakeLoaded, {});
      case 6:
      case 7:
        return request(ServerRequest::kPart, encode_part(batch(), {&part, 1}));
      default:
        return request(ServerRequest::kLookup, encode_lookup(batch(), {&keys, 1}, ids.size()));
    }
  }

  TrialRequest of_worker(std::size_t index) {
    FeatureSetting const feature{.name = "f", .table = kTable, .pooling = embedding::Pooling::kSum};
    auto const tables = one_table(kTrialDim);
    std::size_t const small = 0;
    std::span<std::size_t const> const all_small(&small, below(2));  // Small tables, or none.
    if (index == 0) return request(WorkerRequest::kSetUp, encode_set_up(tables, {&feature, 1}, {}, all_small));
    if (index == 1) return request(WorkerRequest::kBeginGeneration, encode_generation(rules(), 5));
    BatchName const name{.loader = 1, .number = below(4)};
    std::vector<std::int64_t> const ids{kFirstId, kFirstId + 1, kFirstId}, lengths{2, 0, 1};
    FeatureIds const values{.ids = ids, .lengths = lengths};
    std::vector<float> const gradients(lengths.size() * kTrialDim, 0.5F);
    PartValues const part{.rate = 0.1, .gradients = gradients};
    switch (below(8)) {
      case 0:
        return request(WorkerRequest::kDrop, encode_void(batch(), LossCause::kOverflow));
      case 1:
        return request(WorkerRequest::kRead, encode_fetch(name, batch()));
      case 2:
        return request(WorkerRequest::kEndAt, encode_batch({.step = below(8)}));
      case 3:
      case 4:
        return request(WorkerRequest::kFetch, encode_fetch(name, batch()));
      case 5:
        return request(WorkerRequest::kGradients, encode_part(batch(), {&part, 1}));
      default:
        return request(WorkerRequest::kSubmit, encode_submit(name, {&values, 1}));
    }
  }

  std::mt19937& random_;
  bool const is_of_worker_;
};

/// Sends a list to a new role.
/// @param has_ids_in_place no change has moved an id to where a size or a setting is, which an error may name
/// @returns what is wrong; empty: all was answered or refused as it should
inline std::string answer_list(std::span<TrialRequest const> list, bool is_of_worker, bool has_ids_in_place) {
  Servers servers(1, {.max_rows_bytes = 1 << 20});
  EmbeddingWorker worker({.connect = [&] { return ends_of(servers); },
                          .timeout = std::chrono::seconds(20),
                          .max_buffer_bytes = 1 << 20,
                          .max_batch_bytes = 1 << 20});
  auto [here, there] = make_two_ends();
  Responder const responder(std::move(here), {.incarnation = 1}, [&](Request& request) {
    is_of_worker ? worker.handle(request) : servers[0].handle(request);
  });
  Requester requester(std::move(there), kLong, std::chrono::microseconds(0));
  auto const start = [&](std::uint32_t kind, std::uint64_t generation, std::span<std::byte const> body) {
    return requester.start({.kind = kind, .generation = generation, .body = {body.begin(), body.end()}});
  };
  std::vector<Requester::CallPtr> calls;
  for (auto const& each : list) {
    // A server writes a checkpoint wherever it is told to.
    if (!is_of_worker && each.kind == static_cast<std::uint8_t>(ServerRequest::kSave)) continue;
    calls.push_back(start(each.kind, each.generation, each.body));
  }
  auto const of_status = is_of_worker ? static_cast<std::uint32_t>(WorkerRequest::kStatus)
                                      : static_cast<std::uint32_t>(ServerRequest::kStatus);
  auto const status = requester.wait(*start(of_status, 1, {}), kLong);
  if (!status) return "the status was not answered";
  if (status->code != ReplyCode::kOk) return "the role has failed: " + std::string(status->text());
  for (auto const& call : calls) {
    if (!requester.test(*call)) continue;  // It waits for other requests.
    auto const reply = requester.wait(*call, kLong);
    if (!reply || reply->code == ReplyCode::kOk) continue;
    if (reply->text().empty() || reply->text().size() > 1000) return "an error has no readable text";
    if (has_ids_in_place && reply->text().find(kDigitsOfIds) != std::string_view::npos) {
      return "an error names an id: " + std::string(reply->text());
    }
  }
  return {};
}

/// Decodes a body as each message there is. @throws whatever is no base::UsageError
inline void decode_as_everything(std::span<std::byte const> body) {
  std::vector<std::size_t> const dims{kTrialDim}, none;
  std::vector<float> rows(4 * kTrialDim);
  std::vector<std::span<float>> const outs{rows};
  constexpr std::size_t kMost = 1 << 20;
  auto const decode = [](auto const& call) {
    try {
      call();
    } catch (base::UsageError const&) {
    }
  };
  for (bool const is_compressed : {false, true}) {
    Compression const compression{.ids = is_compressed, .values = is_compressed};
    auto const& half_dims = is_compressed ? dims : none;
    decode([&] { static_cast<void>(decode_lookup(body, 1, compression, kMost)); });
    decode([&] { decode_rows(body, dims, compression, outs); });
    decode([&] { static_cast<void>(decode_part(body, 1, half_dims)); });
    decode([&] { static_cast<void>(decode_submit(body, 1, compression, kMost)); });
    decode([&] { static_cast<void>(decode_embeddings(body, half_dims, kMost)); });
  }
  decode([&] { static_cast<void>(decode_tables(decode_configuration(body).tables)); });
  decode([&] { static_cast<void>(decode_generation(body)); });
  decode([&] { static_cast<void>(decode_batch(body)); });
  decode([&] { static_cast<void>(decode_void(body)); });
  decode([&] { static_cast<void>(decode_status(body)); });
  decode([&] { static_cast<void>(decode_set_up(body)); });
  decode([&] { static_cast<void>(decode_submit_name(body)); });
  decode([&] { static_cast<void>(decode_fetch(body)); });
  decode([&] { static_cast<void>(decode_worker_status(body)); });
  decode([&] { static_cast<void>(decode_save(body)); });
  decode([&] { static_cast<void>(decode_saved(body)); });
  decode([&] { static_cast<void>(decode_load(body)); });
  decode([&] { static_cast<void>(decode_evicted(body)); });
  decode([&] { static_cast<void>(decode_row_queries(body, 1)); });
  decode([&] { static_cast<void>(decode_indexed_rows(body)); });
  decode([&] { static_cast<void>(decode_rows_to_store(body, 1)); });
}

}  // namespace headway::hybrid
