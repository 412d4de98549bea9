// SPDX-License-Identifier: Apache-2.0

// An embedding worker: between loaders, which have ids, and dense workers, which never see one.
//
// The life of a batch:
//   submit     a loader sends its ids, which are buffered. Beyond the limit in bytes the answer waits, and with it the
//              loader.
//   fetch      a dense worker takes it for a step: its keys go to the servers. The answer, embeddings of its bags,
//              waits until the servers have answered, that is until the staleness allows.
//   gradients  of the bags are added by key, and go to the servers. The answer waits until all have taken them.
//   drop       void notices go instead of gradients, also for a step without a batch.
//
// Example: loader 9 submits its batches 0 and 1. Dense worker 0 fetches batch 0 for step 0 and batch 1 for step 1. With
// a staleness of 0 the second answer waits until the gradients of the first one were applied.
//
// A generation that begins refuses the fetches of the one before. Batches without gradients are buffered again: after a
// checkpoint the dense workers fetch them for the same steps.
//
// A worker that leaves takes no more batches of loaders, and goes on with those that it has. It has left when there are
// none (see the program).
//
// Small tables are not looked up: dense workers keep their rows in step. An answer has row indices in place of their
// ids, and rows that the dense worker may not have (RowDirectory).
//
// Idea: one thread looks after all requests that wait. It asks EmbeddingClient which batches are ready, every kPoll
// while there are any, and sleeps otherwise. Requests never wait on the thread of their link, so gradients are read
// while lookups wait.
// Invariants: a batch is fetched or read once. All calls of EmbeddingClient are made under one mutex.
// Complexity: 2 requests of a batch from loader and dense worker each, and those of EmbeddingClient.

#include "headway/hybrid/embedding_worker.hpp"

#include "headway/base/status.hpp"
#include "worker/row_directory.hpp"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

namespace headway::hybrid {

namespace {

constexpr std::chrono::microseconds kPoll(100);

}  // namespace

class EmbeddingWorker::Impl {
 public:
  explicit Impl(EmbeddingWorkerOptions options)
      : options_(std::move(options)), waiter_([this](std::stop_token const& stop) { look_after(stop); }) {}
  ~Impl() {
    waiter_.request_stop();
    changed_.notify_all();
  }
  Impl(Impl const&) = delete;
  Impl& operator=(Impl const&) = delete;

  void handle(Request& request) {
    std::lock_guard const lock(mutex_);
    auto const kind = static_cast<WorkerRequest>(request.kind());
    if (kind == WorkerRequest::kSetUp) return set_up(request);
    if (kind == WorkerRequest::kStatus) return request.reply(encode_worker_status(status_locked()));
    base::expects(request.kind() > 0 && request.kind() <= static_cast<std::uint32_t>(WorkerRequest::kEndAt),
                  "an embedding worker has no requests of kind " + std::to_string(request.kind()));
    base::expects(client_ != nullptr, "the embedding worker has no tables yet");
    switch (kind) {
      case WorkerRequest::kBeginGeneration:
        return begin_generation(request);
      case WorkerRequest::kSubmit:
        return submit(request);
      case WorkerRequest::kRead:
        return read(request);
      default:
        break;
    }
    if (request.generation() != generation_) {
      auto const text = "generation " + std::to_string(request.generation()) + " is not the present one, which is " +
                        std::to_string(generation_);
      base::expects(request.generation() < generation_, text);
      return request.refuse(ReplyCode::kOldGeneration, text);
    }
    switch (kind) {
      case WorkerRequest::kFetch:
        return fetch(request);
      case WorkerRequest::kGradients:
        return take_gradients(request);
      case WorkerRequest::kDrop:
        return drop(request);
      default:
        client_->end_at(decode_batch(request.body()).step);
        return request.reply({});
    }
  }

  [[nodiscard]] WorkerStatus status() const {
    std::lock_guard const lock(mutex_);
    return status_locked();
  }

  void leave() {
    std::lock_guard const lock(mutex_);
    is_leaving_ = true;
    for (auto& each : loaders_) {
      counts_.loader_wait_ns += nanoseconds_since(each.since);
      refuse_submit(each.request);
      --counts_.submitted;
    }
    loaders_.clear();
  }

  [[nodiscard]] std::size_t num_batches() const {
    std::lock_guard const lock(mutex_);
    return buffered_.size() + fetched_.size();
  }

 private:
  using Key = std::pair<std::uint32_t, std::uint64_t>;  ///< Worker, step.
  using Clock = std::chrono::steady_clock;

  /// A batch that a dense worker has fetched.
  struct Fetched {
    std::optional<BatchName> name;        ///< None: a step without a batch, or it has gradients or is dropped.
    Body body;                            ///< Its ids, for a generation in which it is fetched again.
    std::vector<std::uint64_t> num_bags;  ///< (features)
    std::optional<Request> fetch;         ///< Until its rows have come.
    std::optional<Request> end;           ///< Gradients or drop, until servers have taken them.
    bool has_batch = false;               ///< A step without a batch may be dropped, too.
    std::optional<LossCause> loss{};      ///< It was dropped.
    RowDirectory::Lookup small{};         ///< Questions about its rows of small tables.
    RowDirectory::Positions sent{};       ///< Rows of small tables that went to the dense worker.
    Clock::time_point since = Clock::now();
  };
  /// A batch without room, and its loader.
  struct WaitingLoader {
    Request request;
    Clock::time_point since = Clock::now();
  };

  static std::uint64_t nanoseconds_since(Clock::time_point since) {
    auto const elapsed = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - since);
    return static_cast<std::uint64_t>(elapsed.count());
  }

  [[nodiscard]] WorkerStatus status_locked() const {
    WorkerStatus status = counts_;
    status.generation = generation_;
    status.buffered = buffered_.size();
    status.buffered_bytes = num_bytes_;
    status.waiting_loaders = loaders_.size();
    for (auto const& each : loaders_) status.loader_wait_ns += nanoseconds_since(each.since);
    for (auto const& [key, each] : fetched_) status.in_flight += each.has_batch ? 1 : 0;
    if (client_ == nullptr) return status;
    auto const uses = client_->uses();
    for (std::size_t server = 0; server < uses.size(); ++server) {
      auto& of_server = status.servers[server];
      of_server.name = uses[server].name;
      of_server.bytes_sent = uses[server].bytes_sent;
      of_server.bytes_received = uses[server].bytes_received;
    }
    return status;
  }

  void count_loss(LossCause cause) { ++counts_.lost[static_cast<std::size_t>(cause)]; }

  void set_up(Request& request) {
    auto const body = request.body();
    auto [tables, features, compression, small] = decode_set_up(body);
    if (client_ != nullptr) {
      base::expects(compression == compression_, "the embedding worker has " + to_string(compression_) +
                                                     ", and the request has " + to_string(compression));
      base::expects(std::ranges::equal(body, set_up_), "the embedding worker has other tables or features");
      return request.reply({});
    }
    for (auto const& feature : features) {
      bool const is_known = std::ranges::any_of(tables, [&](auto const& merged) {
        return std::ranges::find(merged.tables, feature.table) != merged.tables.end();
      });
      base::expects(is_known, "feature " + feature.name + ": there is no table " + std::to_string(feature.table));
    }
    auto client = std::make_unique<EmbeddingClient>(options_.connect(), tables, options_.timeout, options_.thread_pool,
                                                    compression);
    auto directory = std::make_unique<RowDirectory>(*client, tables, small);
    set_up_.assign(body.begin(), body.end());
    tables_ = tables;
    small_ = small;
    directory_ = std::move(directory);
    num_tables_ = tables.size();
    for (auto const& merged : tables) dims_.push_back(merged.options.dim);
    features_ = std::move(features);
    compression_ = compression;
    half_dims_ = half_dims_of(tables, compression);
    client_ = std::move(client);
    counts_.servers.resize(client_->uses().size());
    request.reply({});
  }

  void begin_generation(Request& request) {
    auto const [options, token] = decode_generation(request.body());
    if (request.generation() < generation_) {
      return request.refuse(ReplyCode::kOldGeneration, "generation " + std::to_string(generation_) + " has begun");
    }
    bool const is_new = request.generation() > generation_;
    if (is_new || token != token_) client_->begin_generation(request.generation(), options, token);
    if (is_new) {
      for (auto& [key, each] : fetched_) {
        for (auto* const waiting : {&each.fetch, &each.end}) {
          if (*waiting) (*waiting)->refuse(ReplyCode::kOldGeneration, "a later generation has begun");
        }
        if (each.name) {
          put_back(each);
        } else if (each.has_batch) {
          count_loss(each.loss.value_or(LossCause::kGeneration));
        }
      }
      fetched_.clear();
      directory_->clear();
      known_.clear();
      generation_ = request.generation();
      token_ = token;
    }
    request.reply({});
  }

  /// A batch without gradients may be fetched again, such as after a checkpoint. Its loader does not wait for room.
  void put_back(Fetched& fetched) {
    num_bytes_ += fetched.body.size();
    buffered_.emplace(*fetched.name, std::move(fetched.body));
  }

  static void refuse_submit(Request& request) {
    request.refuse(ReplyCode::kLeaving, "it ends soon, and takes no batches");
  }

  void submit(Request& request) {
    if (is_leaving_) return refuse_submit(request);
    auto const submit = decode(request.body());
    auto const name = submit.name;
    base::expects(!has_come(name), to_string(name) + " has come before, or a later one of the loader has");
    static_cast<void>(views_of(name, submit.features));
    counts_.messages.sent_ids += request.body().size();
    counts_.messages.plain_ids += request.body().size() + static_cast<std::uint64_t>(submit.saved_bytes);
    last_numbers_.insert_or_assign(name.loader, name.number);
    ++counts_.submitted;
    if (num_bytes_ > 0 && num_bytes_ + request.body().size() > options_.max_buffer_bytes) {
      loaders_.push_back({.request = std::move(request)});
      ++counts_.loader_waits;
      return;
    }
    buffer(name, request);
  }

  [[nodiscard]] DecodedSubmit decode(std::span<std::byte const> body) const {
    return decode_submit(body, features_.size(), compression_, options_.max_batch_bytes);
  }

  [[nodiscard]] bool has_come(BatchName name) const {
    auto const found = last_numbers_.find(name.loader);
    return found != last_numbers_.end() && name.number <= found->second;
  }

  void buffer(BatchName name, Request& request) {
    auto const body = request.body();
    buffered_.emplace(name, Body(body.begin(), body.end()));
    num_bytes_ += body.size();
    request.reply({});
  }

  /// Checks lengths. @throws base::UsageError that names batch and feature
  [[nodiscard]] std::vector<embedding::Feature> views_of(BatchName name, std::span<FeatureIds const> ids) const {
    std::vector<embedding::Feature> features;
    for (std::size_t i = 0; i < features_.size(); ++i) {
      auto const& each = ids[i];
      std::uint64_t total = 0;
      bool are_in_range = true;
      for (auto const length : each.lengths) {
        are_in_range = are_in_range && length >= 0 && static_cast<std::uint64_t>(length) <= each.ids.size();
        total += static_cast<std::uint64_t>(length);
      }
      // Texts of errors are made once for a feature: once for a sample took half of the worker's time.
      std::string const feature = to_string(name) + ", feature " + features_[i].name;
      base::expects(are_in_range, feature + ": a length is wrong");
      base::expects(total == each.ids.size(), feature + ": lengths add up to " + std::to_string(total) +
                                                  ", and there are " + std::to_string(each.ids.size()) + " ids");
      features.push_back({.name = features_[i].name,
                          .table = features_[i].table,
                          .pooling = features_[i].pooling,
                          .ids = {each.ids.data(), each.ids.size()},
                          .lengths = {each.lengths.data(), each.lengths.size()},
                          .weights = each.weights});
    }
    return features;
  }

  /// Features that are looked up at servers.
  [[nodiscard]] std::vector<embedding::Feature> large_of(std::span<embedding::Feature const> features) const {
    std::vector<embedding::Feature> large;
    std::ranges::copy_if(features, std::back_inserter(large),
                         [&](auto const& feature) { return !directory_->is_small(feature.table); });
    return large;
  }

  [[nodiscard]] static std::vector<std::uint64_t> num_bags_of(std::span<embedding::Feature const> features) {
    std::vector<std::uint64_t> counts;
    for (auto const& each : features) counts.push_back(each.num_bags());
    return counts;
  }

  /// Calls `use` with the features and the ids of a buffered batch, which then ends. `use` may keep the ids.
  template <class Use>
  void take_buffered(BatchName name, Use use) {
    auto const found = buffered_.find(name);
    base::expects(found != buffered_.end(), to_string(name) + (has_come(name) ? " was fetched before, or waits for room"
                                                                              : " has not been submitted"));
    auto const num_bytes = found->second.size();
    auto const submit = decode(found->second);
    use(views_of(name, submit.features), found->second);
    num_bytes_ -= num_bytes;
    buffered_.erase(name);
    while (!loaders_.empty() &&
           (num_bytes_ == 0 || num_bytes_ + loaders_.front().request.body().size() <= options_.max_buffer_bytes)) {
      auto next = std::move(loaders_.front());
      loaders_.pop_front();
      counts_.loader_wait_ns += nanoseconds_since(next.since);
      buffer(decode_submit_name(next.request.body()), next.request);
    }
  }

  void fetch(Request& request) {
    auto const [name, of_step] = decode_fetch(request.body());
    auto const batch = of_step;  // A lambda cannot capture a structured binding in Clang 14.
    Key const key{batch.worker, batch.step};
    base::expects(!fetched_.contains(key), to_string(batch) + ": it has a batch");
    take_buffered(name, [&, batch_name = name](std::span<embedding::Feature const> features, Body& ids) {
      auto small = directory_->start(features);
      client_->start(batch, large_of(features));
      fetched_.emplace(key, Fetched{.name = batch_name,
                                    .body = std::move(ids),
                                    .num_bags = num_bags_of(features),
                                    .fetch = std::move(request),
                                    .end = {},
                                    .has_batch = true,
                                    .small = std::move(small)});
    });
    ++counts_.fetched;
    changed_.notify_all();
  }

  void read(Request& request) {
    auto const [name, batch] = decode_fetch(request.body());
    Embeddings embeddings;
    take_buffered(name, [&](std::span<embedding::Feature const> features, Body const&) {
      auto const found = client_->read(large_of(features));
      RowDirectory now(*client_, tables_, small_);  // A load may have changed rows since.
      auto small = now.start(features);
      now.wait(small);
      static_cast<void>(now.write(features, {}, embeddings));
      embeddings.num_bags = num_bags_of(features);
      for (std::size_t merged = 0; merged < num_tables_; ++merged) {
        auto& values = embeddings.values.emplace_back(found.num_bags(merged) * dims_[merged]);
        found.expand(merged, values);
        if (compression_.values) embeddings.distinct_bags.push_back(found.distinct_bags(merged));
      }
    });
    ++counts_.read;
    reply(request, embeddings);
  }

  [[nodiscard]] Fetched& fetched(BatchId batch) {
    auto const found = fetched_.find({batch.worker, batch.step});
    base::expects(found != fetched_.end(), to_string(batch) + ": it was not fetched here, or has ended");
    base::expects(!found->second.end.has_value(), to_string(batch) + ": it has gradients, or was dropped");
    return found->second;
  }

  void take_gradients(Request& request) {
    auto const part = decode_part(request.body(), num_tables_, half_dims_);
    auto& entry = fetched(part.batch);
    base::expects(!entry.fetch.has_value(), to_string(part.batch) + ": its embeddings have not been sent");
    std::vector<EmbeddingClient::Gradients> gradients;
    std::vector<std::vector<float>> spread(num_tables_);  // Gradients of bags that travelled as those of distinct bags.
    auto saved_bytes = part.saved_bytes;
    for (std::size_t merged = 0; merged < num_tables_; ++merged) {
      auto const& values = part.tables[merged];
      auto const dim = dims_[merged], num_bags = client_->num_bags(part.batch, merged);
      auto const distinct =
          compression_.values ? client_->distinct_bags(part.batch, merged) : std::vector<std::uint32_t>();
      auto const expected = (distinct.empty() ? num_bags : num_distinct(distinct)) * dim;
      base::expects(values.gradients.empty() || values.gradients.size() == expected,
                    to_string(part.batch) + ": merged table " + std::to_string(merged) + " has " +
                        std::to_string(values.gradients.size()) + " gradients instead of " + std::to_string(expected));
      gradients.push_back({.rate = values.rate, .values = values.gradients});
      if (distinct.empty() || values.gradients.empty()) continue;
      saved_bytes += static_cast<std::int64_t>((num_bags * dim - expected) * sizeof(float));
      spread[merged] = spread_distinct(distinct, dim, values.gradients);
      gradients.back().values = spread[merged];
    }
    client_->return_gradients(part.batch, gradients);
    RowDirectory::mark(known_[part.batch.worker], entry.sent);
    counts_.messages.sent_values += request.body().size();
    counts_.messages.plain_values += request.body().size() + static_cast<std::uint64_t>(saved_bytes);
    end(entry, request);
  }

  void drop(Request& request) {
    auto const [of_step, cause] = decode_void(request.body());
    auto const batch = of_step;
    fetched_.try_emplace({batch.worker, batch.step});  // A dense worker without a batch may drop its step.
    auto& entry = fetched(batch);
    client_->drop(batch, cause);
    entry.loss = cause;
    if (entry.fetch)
      std::exchange(entry.fetch, std::nullopt)->refuse(ReplyCode::kFailed, to_string(batch) + ": it is void");
    ++counts_.dropped;
    end(entry, request);
  }

  /// A batch has gradients, or was dropped: nobody fetches it again.
  void end(Fetched& entry, Request& request) {
    entry.end.emplace(std::move(request));
    entry.name.reset();
    entry.body = {};
    changed_.notify_all();
  }

  // The thread that looks after waiting requests.

  void look_after(std::stop_token const& stop) {
    std::unique_lock lock(mutex_);
    while (!stop.stop_requested()) {
      if (!is_anyone_waiting()) {
        changed_.wait(lock, [&] { return stop.stop_requested() || is_anyone_waiting(); });
        continue;
      }
      for (auto each = fetched_.begin(); each != fetched_.end();) {
        each = look_at(each->first, each->second) ? fetched_.erase(each) : std::next(each);
      }
      lock.unlock();
      std::this_thread::sleep_for(kPoll);
      lock.lock();
    }
  }

  [[nodiscard]] bool is_anyone_waiting() const {
    return std::ranges::any_of(
        fetched_, [](auto const& each) { return each.second.fetch.has_value() || each.second.end.has_value(); });
  }

  /// Answers what can be answered. @returns whether the batch has ended
  bool look_at(Key key, Fetched& entry) {
    BatchId const batch{.step = key.second, .worker = key.first};
    auto& waiting = entry.end ? entry.end : entry.fetch;
    if (!waiting) return false;
    try {
      if (entry.end) {
        if (!client_->is_finished(batch)) return false;
        bool const is_finite = client_->finish(batch);
        count_end(entry, is_finite);
        entry.end->reply(is_finite ? Body{} : encode_batch(batch));
        return true;
      }
      bool const has_small = directory_->is_ready(entry.small);
      if (!client_->is_ready(batch) || !has_small) return false;
      client_->wait(batch);
      auto const embeddings = embeddings_of(batch, entry);
      count_answer(entry, client_->last_missing(batch));
      reply(*entry.fetch, embeddings);
      entry.fetch.reset();
    } catch (std::exception const& error) {
      std::exchange(waiting, std::nullopt)->refuse(ReplyCode::kFailed, error.what());
    }
    return false;
  }

  void count_end(Fetched const& entry, bool is_finite) {
    if (!entry.has_batch) return;
    if (entry.loss) return count_loss(*entry.loss);
    if (!is_finite) return count_loss(LossCause::kNotFinite);
    ++counts_.trained;
  }

  void count_answer(Fetched const& entry, std::optional<std::size_t> last_server) {
    ++counts_.answered;
    if (!last_server) return;
    auto& of_server = counts_.servers[*last_server];
    ++of_server.num_last;
    of_server.last_ns += nanoseconds_since(entry.since);
  }

  [[nodiscard]] Embeddings embeddings_of(BatchId batch, Fetched& entry) {
    Embeddings embeddings{.num_bags = entry.num_bags, .values = {}};
    if (!small_.empty()) {
      auto const ids = decode(entry.body);
      entry.sent = directory_->write(views_of(ids.name, ids.features), known_[batch.worker], embeddings);
    }
    for (std::size_t merged = 0; merged < num_tables_; ++merged) {
      auto& values = embeddings.values.emplace_back(client_->num_bags(batch, merged) * dims_[merged]);
      client_->expand(batch, merged, values);
      if (compression_.values) embeddings.distinct_bags.push_back(client_->distinct_bags(batch, merged));
    }
    return embeddings;
  }

  /// Answers, and counts bytes.
  void reply(Request& request, Embeddings const& embeddings) {
    auto body = encode_embeddings(embeddings, half_dims_);
    std::size_t plain_bytes = (2 + embeddings.num_bags.size()) * sizeof(std::uint64_t) + small_bytes_of(embeddings);
    for (auto const& values : embeddings.values) {
      plain_bytes += sizeof(std::uint64_t) + (values.size() * sizeof(float) + 7) / 8 * 8;
    }
    counts_.messages.plain_values += plain_bytes;
    counts_.messages.sent_values += body.size();
    request.reply(std::move(body));
  }

  EmbeddingWorkerOptions const options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;  ///< A request waits, or the worker ends.
  // All below is guarded by mutex_.
  Body set_up_;
  std::vector<FeatureSetting> features_;
  std::size_t num_tables_ = 0;
  std::vector<std::size_t> dims_;
  Compression compression_{};
  std::vector<std::size_t> half_dims_{};     ///< dims_ if values are compressed, else empty.
  std::unique_ptr<EmbeddingClient> client_;  ///< Null: there are no tables yet.
  std::vector<embedding::MergedTable> tables_;
  std::vector<std::size_t> small_;                      ///< Merged tables that dense workers keep in step.
  std::unique_ptr<RowDirectory> directory_;             ///< Uses client_.
  std::map<std::uint32_t, RowDirectory::Known> known_;  ///< By dense worker.
  std::uint64_t generation_ = 0, token_ = 0;
  std::map<BatchName, Body> buffered_;                   ///< Ids of batches, as they came.
  std::map<std::uint64_t, std::uint64_t> last_numbers_;  ///< Number of the last batch of each loader.
  std::size_t num_bytes_ = 0;                            ///< Bodies of buffered_.
  bool is_leaving_ = false;                              ///< No batch of a loader is taken.
  std::deque<WaitingLoader> loaders_;                    ///< Submitted, and without room.
  std::map<Key, Fetched> fetched_;
  WorkerStatus counts_{.lost = std::vector<std::uint64_t>(kNumLossCauses)};
  std::jthread waiter_;
};

EmbeddingWorker::EmbeddingWorker(EmbeddingWorkerOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
EmbeddingWorker::~EmbeddingWorker() = default;
void EmbeddingWorker::handle(Request& request) { impl_->handle(request); }
WorkerStatus EmbeddingWorker::status() const { return impl_->status(); }
void EmbeddingWorker::leave() { impl_->leave(); }
std::size_t EmbeddingWorker::num_batches() const { return impl_->num_batches(); }

}  // namespace headway::hybrid
