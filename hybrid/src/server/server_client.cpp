// SPDX-License-Identifier: Apache-2.0

#include "headway/hybrid/server_client.hpp"

#include <cstring>
#include <utility>

namespace headway::hybrid {

using std::chrono::milliseconds;

namespace {

std::vector<float> floats_of(Body const& body) {
  std::vector<float> floats(body.size() / sizeof(float));
  if (!floats.empty()) std::memcpy(floats.data(), body.data(), floats.size() * sizeof(float));
  return floats;
}

}  // namespace

ServerClient::ServerClient(std::unique_ptr<comm::Group> link, milliseconds timeout)
    : timeout_(timeout), requester_(std::move(link), timeout) {}

ServerClient::ServerClient(RequestHandler server, milliseconds timeout)
    : timeout_(timeout), requester_(std::move(server)) {}

Body ServerClient::ask(ServerRequest kind, std::uint64_t generation, Body body) {
  return requester_.ask({.kind = static_cast<std::uint32_t>(kind), .generation = generation, .body = std::move(body)},
                        timeout_);
}

Requester::CallPtr ServerClient::start(ServerRequest kind, std::uint64_t generation, Body body) {
  return requester_.start(
      {.kind = static_cast<std::uint32_t>(kind), .generation = generation, .body = std::move(body)});
}

void ServerClient::configure(std::span<embedding::MergedTable const> tables, Compression compression) {
  static_cast<void>(ask(ServerRequest::kConfigure, 0, encode_configuration(tables, compression)));
  compression_ = compression;
  half_dims_ = half_dims_of(tables, compression);
}

void ServerClient::begin_generation(std::uint64_t generation, StepLedger::Options const& options, std::uint64_t token) {
  static_cast<void>(ask(ServerRequest::kBeginGeneration, generation, encode_generation(options, token)));
}

Requester::CallPtr ServerClient::start_lookup(std::uint64_t generation, BatchId batch, std::span<KeyList const> tables,
                                              std::uint64_t num_samples) {
  return start(ServerRequest::kLookup, generation, encode_lookup(batch, tables, num_samples, compression_));
}

std::optional<std::vector<float>> ServerClient::wait_rows(Requester::Call& lookup, milliseconds timeout) {
  auto const reply = requester_.wait(lookup, timeout);
  if (!reply) return std::nullopt;
  if (reply->code != ReplyCode::kOk) throw RequestRefused(reply->code, std::string(reply->text()));
  base::expects(!compression_.values, "rows are compressed: use decode_rows()");
  return floats_of(reply->body);
}

Requester::CallPtr ServerClient::start_part(std::uint64_t generation, BatchId batch,
                                            std::span<PartValues const> tables) {
  return start(ServerRequest::kPart, generation, encode_part(batch, tables, half_dims_));
}

Requester::CallPtr ServerClient::start_void(std::uint64_t generation, BatchId batch, LossCause cause) {
  return start(ServerRequest::kVoid, generation, encode_void(batch, cause));
}

void ServerClient::finish(Requester::Call& call) {
  static_cast<void>(requester_.await(call, timeout_, "the server did not answer"));
}

std::vector<float> ServerClient::read(std::span<KeyList const> tables) {
  base::expects(!compression_.values, "rows are compressed: use read_answer()");
  return floats_of(read_answer(tables));
}

Body ServerClient::read_answer(std::span<KeyList const> tables) {
  return ask(ServerRequest::kRead, 0, encode_lookup({}, tables, 0, compression_));
}

void ServerClient::end_at(std::uint64_t generation, std::uint64_t step) {
  static_cast<void>(ask(ServerRequest::kEndAt, generation, encode_batch({.step = step})));
}

Requester::CallPtr ServerClient::start_save(std::uint64_t generation, SaveArgs const& save) {
  return start(ServerRequest::kSave, generation, encode_save(save));
}

Requester::CallPtr ServerClient::start_load(std::uint64_t generation, LoadArgs const& load) {
  return start(ServerRequest::kLoad, generation, encode_load(load));
}

Requester::CallPtr ServerClient::start_take_loaded(std::uint64_t generation) {
  return start(ServerRequest::kTakeLoaded, generation, {});
}

Requester::CallPtr ServerClient::start_rows(std::span<RowQuery const> queries) {
  return start(ServerRequest::kRows, 0, encode_row_queries(queries));
}

Requester::CallPtr ServerClient::start_store_rows(std::uint64_t generation, std::span<RowsToStore const> tables) {
  return start(ServerRequest::kStoreRows, generation, encode_rows_to_store(tables));
}

ServerStatus ServerClient::status() { return decode_status(ask(ServerRequest::kStatus, 0, {})); }

}  // namespace headway::hybrid
