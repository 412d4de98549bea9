// SPDX-License-Identifier: Apache-2.0

// Lookups of a collection for PyTorch: a ShardedTable on tensors.
//
// A collection is a set of embedding tables; those of equal configuration are merged and share rows and exchanges.
//
// Idea: begin() takes the ids of a batch, finish() returns its embeddings, and the backward pass leaves the gradients
// with the owners of the rows (lookup_function.cpp). apply() updates these rows. A batch keeps its keys until then.
//
// Example: two backward passes before an optimizer step leave two batches. apply() adds their gradients by key, in the
// order of the passes, and updates each row once.
//
// Invariants: outputs are made on the stream of the caller. A batch that other streams used is freed only after these.
//   Until a gradient is added, nobody may write to its memory: checked by the version of the tensor. Gradients whose
//   storage other tensors share, or whose memory autograd may use for another batch, are added at once.
// Complexity: that of ShardedTable, and O(features) on the host. No operator of PyTorch is called per feature.

#include "tensor_lookup.hpp"

#include "batch_memory.hpp"
#include "devices.hpp"
#include "headway/base/status.hpp"
#include "interpreter.hpp"
#include "lookup_function.hpp"
#include "process_group/process_group_exchanger.hpp"

#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace headway::embedding {

namespace {

/// Number of backward passes without apply() after which a warning asks for it.
constexpr std::size_t kManyGradients = 64;

}  // namespace

// Blocks go back to the streams that made them. Streams come in the order of their first use, and one uses the blocks
// of those before it, so these wait for it. To free an exchange that has not been waited for may take a while, so other
// Python threads run meanwhile.
TensorBatch::~TensorBatch() {
  if (is_waiting_) --*num_waiting_;
  auto const released = interpreter().release_lock == nullptr ? nullptr : interpreter().release_lock();
  try {
    for (std::size_t later = 1; later < streams_.size(); ++later) {
      c10::Event done(streams_[later].device_type());
      done.record(streams_[later]);
      for (std::size_t earlier = 0; earlier < later; ++earlier) done.block(streams_[earlier]);
    }
  } catch (std::exception const&) {  // The device has failed; the next call on it tells why.
  }
  batch_.reset();
}

TensorLookup::TensorLookup(std::vector<LookedUpTable> tables, std::vector<std::string> names,
                           std::vector<std::uint32_t> feature_tables, std::vector<Pooling> poolings,
                           c10::intrusive_ptr<c10d::ProcessGroup> const& group, Dedup dedup,
                           std::shared_ptr<base::ThreadPool> thread_pool, at::Device device, bool by_feature)
    : device_(device),
      feature_tensors_(std::move(names), feature_tables, poolings, device),
      by_feature_(by_feature),
      poolings_(std::move(poolings)),
      has_peers_(group != nullptr && group->getSize() > 1),
      timer_(std::make_shared<WaitTimer>(device)),
      num_marked_(tables.size()),
      sent_(tables.size()) {
  std::vector<MergedTable> merged;
  for (auto const& each : tables) {
    tables_.push_back(each.table);
    table_numbers_.push_back(each.numbers);
    merged.push_back({.options = each.table->options(),
                      .tables = each.numbers,
                      .reads_unknown_as_zeros = each.reads_unknown_as_zeros,
                      .existing_table = each.table->shared_table()});
    auto const has = [&each](std::uint32_t number) {
      return std::ranges::find(each.numbers, number) != each.numbers.end();
    };
    first_feature_.push_back(
        static_cast<std::size_t>(std::ranges::find_if(feature_tables, has) - feature_tables.begin()));
  }
  first_feature_.push_back(feature_tables.size());
  std::unique_ptr<Exchanger> exchanger;
  if (!has_peers_) {
    exchanger = make_local_exchanger();
  } else {
    exchanger = std::make_unique<TimedExchanger>(make_exchanger(group, device), timer_);
  }
  sharded_ = std::make_unique<ShardedTable>(
      merged, std::move(exchanger),
      ShardedTableOptions{.dedup = dedup, .thread_pool = thread_pool, .device = batch_device(device, thread_pool)});
}

std::vector<std::int64_t> TensorLookup::output_dims() const {
  std::vector<std::int64_t> dims;
  for (std::size_t merged = 0; merged < tables_.size(); ++merged) {
    auto const [begin, end] = outputs_of(merged);
    dims.insert(dims.end(), end - begin, static_cast<std::int64_t>(tables_[merged]->table().dim()));
  }
  return dims;
}

std::vector<bool> TensorLookup::are_pooled() const {
  std::vector<bool> result;
  for (std::size_t merged = 0; merged < tables_.size(); ++merged) {
    auto const [begin, end] = outputs_of(merged);
    auto const first = by_feature_ ? begin : first_feature_[merged];
    for (std::size_t i = 0; i < end - begin; ++i) result.push_back(poolings_[first + i] != Pooling::kNone);
  }
  return result;
}

// Drops the pending gradients at the end of its scope, also after an error, for example a rate that is not finite: the
// next step must not apply these gradients too.
class TensorLookup::DropAtEnd {
 public:
  explicit DropAtEnd(TensorLookup& lookup) : lookup_(lookup) {}
  DropAtEnd(DropAtEnd const&) = delete;
  DropAtEnd& operator=(DropAtEnd const&) = delete;
  ~DropAtEnd() { lookup_.drop_pending(); }

 private:
  TensorLookup& lookup_;
};

void TensorLookup::use_pending() const {
  for (auto const& batch : pending_) use(*batch);
}

void TensorLookup::use(TensorBatch& batch) const {
  if (device_.is_cpu()) return;
  auto const stream = current_stream(device_);
  if (std::ranges::find(batch.streams_, stream) == batch.streams_.end()) batch.streams_.push_back(stream);
}

template <class Work>
void TensorLookup::change(Work const& work, std::size_t first) {
  if (first == tables_.size()) return work();
  tables_[first]->change([&](Table&) { change(work, first + 1); });
}

TensorLookup::BatchPtr TensorLookup::begin(std::vector<at::Tensor> const& ids, std::vector<at::Tensor> const& lengths,
                                           std::vector<std::optional<at::Tensor>> const& weights,
                                           LookupSettings const& settings) {
  std::lock_guard const lock(mutex_);
  auto batch = c10::make_intrusive<TensorBatch>();
  std::vector<std::optional<at::Tensor>> detached = weights;
  for (std::size_t merged = 0; merged < tables_.size(); ++merged) {
    auto const [begin, end] = features_of(merged);
    std::int64_t first_key = 0;
    for (std::size_t i = begin; i < std::min(end, weights.size()); ++i) {
      if (weights[i] && weights[i]->requires_grad()) {
        detached[i] = weights[i]->detach();
        batch->learned_.push_back({.merged = merged,
                                   .feature = i,
                                   .weights = *weights[i],
                                   .type = weights[i]->scalar_type(),
                                   .num_keys = weights[i]->numel(),
                                   .lengths = lengths[i].clone(),
                                   .pooling = poolings_[i],
                                   .first_key = first_key});
      }
      first_key += ids[i].numel();
    }
  }
  std::vector<at::Tensor> held;
  auto const features = feature_tensors_.features(ids, lengths, detached, held);
  for (std::size_t merged = 0; merged < tables_.size(); ++merged) {
    auto const [begin, end] = features_of(merged);
    if (!by_feature_) batch->num_bags_.push_back(0);
    for (std::size_t i = begin; i < end; ++i) {
      auto const num_bags = static_cast<std::int64_t>(features[i].num_bags());
      by_feature_ ? batch->num_bags_.push_back(num_bags) : void(batch->num_bags_.back() += num_bags);
    }
  }
  batch->num_waiting_ = num_waiting_;
  batch->inserts_ = settings.inserts;
  use(*batch);
  batch->batch_ = sharded_->begin(features, {.mode = settings.inserts ? LookupMode::kInsert : LookupMode::kRead,
                                             .keeps_embeddings = !batch->learned_.empty(),
                                             .counts_refused = settings.counts_refused,
                                             .masks_unknown = settings.evaluates});
  record(batch->begun_);
  return batch;
}

TensorLookup::BatchPtr TensorLookup::run_of(TensorBatch& begun) {
  auto run = c10::make_intrusive<TensorBatch>();
  run->num_bags_ = begun.num_bags_;
  run->learned_ = begun.learned_;
  for (auto& learned : run->learned_) learned.weights.reset();
  run->inserts_ = begun.inserts_;
  run->num_waiting_ = num_waiting_;
  run->streams_ = begun.streams_;
  if (sharded_->is_finished(*begun.batch_)) begun.batch_ = sharded_->begin_again(*begun.batch_);
  run->batch_ = begun.batch_;
  return run;
}

std::vector<at::Tensor> TensorLookup::finish(BatchPtr const& begun, std::vector<at::Tensor> const& anchors) {
  std::lock_guard const lock(mutex_);
  // A replayed CUDA graph may overwrite the memory of pending gradients from here on.
  if (sharded_->num_pending() > 0) {
    expect_unread_unchanged();
    use_pending();
    for (std::size_t merged = 0; merged < tables_.size(); ++merged) {
      static_cast<void>(sharded_->add_gradients(merged, sharded_->num_pending()));
    }
    unread_.clear();
  }
  auto const batch = run_of(*begun);
  if (torch::autograd::get_current_graph_task_id() != -1) {  // A repeated forward pass of activation checkpointing.
    sharded_->read_only(*batch->batch_);
    batch->inserts_ = false;
  }
  use(*batch);
  if (batch->inserts_) {
    change([&] { sharded_->finish(*batch->batch_); });
  } else {
    if (sharded_->has_deferred()) change([&] { sharded_->drain(); });
    sharded_->finish(*batch->batch_);
  }
  std::vector<at::Tensor> inputs = anchors;
  bool const has_autograd = at::GradMode::is_enabled();
  if (has_autograd) {
    for (auto const& learned : begun->learned_) inputs.push_back(learned.weights);
    batch->is_waiting_ = true;
    ++*num_waiting_;
  }
  auto outputs = has_autograd
                     ? expand_with_gradient(c10::intrusive_ptr<TensorLookup>::reclaim_copy(this), batch, inputs)
                     : expand(*batch);
  sharded_->forget_embeddings(*batch->batch_);
  record(finished_);
  return outputs;
}

void TensorLookup::record(std::optional<c10::Event>& point) const {
  if (device_.is_cpu() || !has_peers_) return;
  if (!point) point.emplace(device_.type());
  point->record(current_stream(device_));
}

std::vector<at::Tensor> TensorLookup::expand(TensorBatch& batch) {
  std::vector<at::Tensor> outputs;
  for (std::size_t merged = 0; merged < tables_.size(); ++merged) {
    auto const [begin, end] = outputs_of(merged);
    auto const all = empty_matrix(static_cast<std::int64_t>(batch.batch_->num_bags(merged)),
                                  static_cast<std::int64_t>(tables_[merged]->table().dim()), device_);
    sharded_->expand(*batch.batch_, merged,
                     {static_cast<float*>(all.mutable_data_ptr()), static_cast<std::size_t>(all.numel())});
    std::int64_t first = 0;
    for (std::size_t i = begin; i < end; ++i) {
      outputs.push_back(end - begin == 1 ? all : rows_of(all, first, batch.num_bags_[i]));
      first += batch.num_bags_[i];
    }
  }
  return outputs;
}

void TensorLookup::start_keys(BatchPtr const& batch) {
  std::lock_guard const lock(mutex_);
  use(*batch);
  if (batch->begun_) batch->begun_->block(current_stream(device_));
  sharded_->start_keys(*batch->batch_);
  record(batch->begun_);
}

void TensorLookup::look_up(BatchPtr const& batch, bool inserts) {
  std::lock_guard const lock(mutex_);
  use(*batch);
  batch->inserts_ = inserts;
  if (sharded_->has_deferred()) change([&] { sharded_->drain(); });
  if (!inserts) return sharded_->read_only(*batch->batch_), sharded_->look_up(*batch->batch_);
  change([&] { sharded_->look_up(*batch->batch_); });
}

void TensorLookup::start_embeddings(BatchPtr const& batch) {
  std::lock_guard const lock(mutex_);
  use(*batch);
  sharded_->start_embeddings(*batch->batch_);
}

std::vector<at::Tensor> TensorLookup::take_embeddings(BatchPtr const& batch) {
  std::lock_guard const lock(mutex_);
  use(*batch);
  if (!sharded_->is_finished(*batch->batch_)) sharded_->finish(*batch->batch_);
  auto outputs = expand(*batch);
  sharded_->forget_embeddings(*batch->batch_);
  return outputs;
}

at::Tensor TensorLookup::own_refused(BatchPtr const& batch) const {
  std::lock_guard const lock(mutex_);
  auto const& refused = sharded_->own_refused(*batch->batch_);
  auto const count = static_cast<std::int64_t>(refused.size());
  return tensor_of(refused.span, refused.owner, std::max<std::int64_t>(count, 1)).sum().to(at::kLong);
}

void TensorLookup::start_gradients(BatchPtr const& batch, std::vector<at::Tensor> const& gradients, double factor) {
  std::lock_guard const lock(mutex_);
  use(*batch);
  std::vector<GradientRows> rows;
  for (auto const& joined : join(*batch, gradients)) {
    rows.push_back(joined.defined() ? GradientRows{.values = block_of(joined), .is_there = true} : GradientRows{});
  }
  sharded_->start_gradients(*batch->batch_, rows, static_cast<float>(factor));
}

void TensorLookup::update(BatchPtr const& batch, std::vector<std::uint64_t> const& steps,
                          std::vector<double> const& rates) {
  std::lock_guard const lock(mutex_);
  use(*batch);
  std::vector<TableStep> all;
  for (std::size_t i = 0; i < steps.size(); ++i) all.push_back({.number = steps[i], .rates = {.rate = rates[i]}});
  DropAtEnd const drop_at_end(*this);
  static_cast<void>(sharded_->finish_gradients(*batch->batch_));
  change([&] { sharded_->apply_gradients(all); });
}

void TensorLookup::read_ahead(std::vector<BatchPtr> const& next, std::vector<BatchPtr> const& present,
                              std::uint32_t step, std::uint32_t oldest_in_use) {
  base::expects(std::ranges::none_of(next, [](auto const& each) { return each == nullptr; }),
                "read_ahead() needs batches that have begun, not None");
  std::lock_guard const lock(mutex_);
  std::optional<c10::StreamGuard> guard;
  if (!device_.is_cpu()) {
    if (!ahead_stream_) {
      c10::impl::VirtualGuardImpl const streams(device_.type());
      ahead_stream_ = streams.getStreamFromGlobalPool(device_, /*isHighPriority=*/true);
    }
    guard.emplace(*ahead_stream_);
    if (finished_) finished_->block(*ahead_stream_);
    for (auto const& each : next) each->begun_->block(*ahead_stream_);
  }
  auto const batches_of = [this](std::vector<BatchPtr> const& all) {
    std::vector<ShardedTable::Batch*> result;
    for (auto const& each : all) {
      use(*each);
      result.push_back(each->batch_.get());
    }
    return result;
  };
  auto const of_next = batches_of(next), of_present = batches_of(present);
  sharded_->expect_may_read_ahead(of_next, of_present);
  change([&] {
    sharded_->drain();
    for (auto const& each : tables_) each->shared_table()->begin_step(step, oldest_in_use);
    sharded_->read_ahead(of_next, of_present);
    if (!device_.is_cpu()) sharded_->take_ahead();  // Else the host would wait for the backward pass.
  });
}

void TensorLookup::drain() {
  std::lock_guard const lock(mutex_);
  if (sharded_->has_deferred()) change([&] { sharded_->drain(); });
}

void TensorLookup::forget_ahead() {
  std::lock_guard const lock(mutex_);
  sharded_->forget_ahead();
}

bool TensorLookup::has_ahead() const {
  std::lock_guard const lock(mutex_);
  return sharded_->has_ahead();
}

bool TensorLookup::has_deferred() const {
  std::lock_guard const lock(mutex_);
  return sharded_->has_deferred();
}

std::uint64_t TensorLookup::num_refused(BatchPtr const& batch) const {
  std::lock_guard const lock(mutex_);
  std::uint64_t sum = 0;
  for (std::size_t merged = 0; merged < tables_.size(); ++merged) sum += sharded_->num_refused(*batch->batch_, merged);
  return sum;
}

void TensorLookup::replace_tables(std::vector<c10::intrusive_ptr<TensorTable>> const& tables) {
  std::lock_guard const lock(mutex_);
  base::expects(tables.size() == tables_.size(), "one table for each merged table");
  for (std::size_t merged = 0; merged < tables.size(); ++merged) {
    sharded_->replace_table(merged, tables[merged]->shared_table());
  }
  tables_ = tables;
}

std::vector<at::Tensor> TensorLookup::join(TensorBatch const& batch, std::vector<at::Tensor> const& gradients) const {
  std::vector<at::Tensor> result;
  for (std::size_t merged = 0; merged < tables_.size(); ++merged) {
    auto const [begin, end] = outputs_of(merged);
    result.push_back(join_rows(std::span(gradients).subspan(begin, end - begin),
                               std::span(batch.num_bags_).subspan(begin, end - begin)));
    base::expects(
        !result.back().defined() || (result.back().scalar_type() == at::kFloat && result.back().device() == device_),
        "gradients of embeddings are float32 on the device of the tables");
  }
  return result;
}

void TensorLookup::take_gradients(BatchPtr const& batch, std::vector<at::Tensor> const& gradients) {
  std::lock_guard const lock(mutex_);
  if (std::exchange(batch->is_waiting_, false)) --*num_waiting_;
  // While another batch waits for its backward pass, autograd may reuse the memory of these gradients for it.
  bool const may_be_reused = *num_waiting_ > 0;
  std::vector<GradientRows> rows;
  auto const by_table = join(*batch, gradients);
  for (std::size_t merged = 0; merged < tables_.size(); ++merged) {
    auto const& joined = by_table[merged];
    auto& of_table = rows.emplace_back();
    if (!joined.defined()) continue;
    of_table = {
        .values = block_of(joined), .is_there = true, .may_change = may_be_reused || !has_storage_of_its_own(joined)};
    bool const is_unread = sharded_->reads_gradients_later(*batch->batch_, merged) && !of_table.may_change;
    if (is_unread)
      unread_.push_back({.values = joined, .version = static_cast<std::int64_t>(joined._version()), .merged = merged});
  }
  use(*batch);
  sharded_->start_gradients(*batch->batch_, rows);
  auto const marks = sharded_->finish_gradients(*batch->batch_);
  for (std::size_t merged = 0; merged < marks.size(); ++merged) {
    if (!marks[merged].empty()) sent_[merged].push_back(tensor_of(marks[merged].span, marks[merged].owner, 1));
  }
  record(finished_);
  pending_.push_back(batch);
  if (pending_.size() == kManyGradients) {
    TORCH_WARN("the gradients of ", kManyGradients,
               " backward passes wait for optimizer.step() of a HashTableCollection: is it called?");
  }
}

at::Tensor TensorLookup::tensor_of(std::span<float const> values, std::shared_ptr<void const> owner,
                                   std::int64_t dim) const {
  return borrow(values.data(), {static_cast<std::int64_t>(values.size()) / dim, dim}, at::kFloat, device_,
                std::move(owner));
}

// With mean, the gradient of a bag is divided by its number of ids first. The operators and their order keep the bits
// of torch.nn.functional.embedding_bag.
at::Tensor TensorLookup::gradient_of_weights(TensorBatch const& batch, TensorBatch::LearnedWeights const& learned,
                                             at::Tensor const& gradients) const {
  auto const& unique = sharded_->unique_keys(*batch.batch_, learned.merged);
  auto const& embeddings = sharded_->embeddings(*batch.batch_, learned.merged);
  auto const num_keys = learned.num_keys;
  auto of_bags = gradients;
  if (learned.pooling != Pooling::kNone) {
    if (learned.pooling == Pooling::kMean) of_bags = of_bags / learned.lengths.clamp_min(1).unsqueeze(1);
    of_bags = of_bags.index_select(0, at::repeat_interleave(learned.lengths, std::optional(num_keys)));
  }
  auto const inverse = borrow(unique.inverse_indices.data() + learned.first_key, {num_keys}, at::kInt, device_);
  auto const dim = static_cast<std::int64_t>(tables_[learned.merged]->table().dim());
  auto of_keys = tensor_of(embeddings.span, embeddings.owner, dim).index_select(0, inverse);
  return of_keys.mul_(of_bags).sum(1).to(learned.type);
}

std::vector<std::pair<at::Tensor, std::optional<at::Tensor>>> TensorLookup::new_gradients(std::size_t merged) {
  std::lock_guard const lock(mutex_);
  if (num_marked_[merged] < sharded_->num_pending()) expect_unread_unchanged();
  use_pending();
  std::vector<std::pair<at::Tensor, std::optional<at::Tensor>>> result;
  auto const dim = static_cast<std::int64_t>(tables_[merged]->table().dim());
  for (auto const& [keys, values] : sharded_->add_gradients(merged, num_marked_[merged])) {
    std::optional<at::Tensor> num_known;
    if (keys.num_known != nullptr) num_known = borrow(keys.num_known, {1}, at::kInt, device_);
    result.emplace_back(tensor_of(values, nullptr, dim), num_known);
  }
  for (auto const& mark : sent_[merged]) result.emplace_back(mark, std::nullopt);
  sent_[merged].clear();
  num_marked_[merged] = sharded_->num_pending();
  std::erase_if(unread_, [merged](Unread const& each) { return each.merged == merged; });
  return result;
}

bool TensorLookup::has_gradients(std::size_t merged) const {
  std::lock_guard const lock(mutex_);
  return sharded_->has_gradients(merged);
}

Traffic TensorLookup::traffic() const {
  std::lock_guard const lock(mutex_);
  return sharded_->traffic();
}

void TensorLookup::expect_unchanged() const {
  std::lock_guard const lock(mutex_);
  expect_unread_unchanged();
}

void TensorLookup::expect_unread_unchanged() const {
  for (auto const& each : unread_) {
    if (each.values._version() != each.version) {
      throw std::runtime_error(
          "gradients of tables were changed in place between backward() and the optimizer's step()");
    }
  }
}

void TensorLookup::apply(std::uint64_t step, std::vector<std::map<std::uint32_t, double>> const& rates,
                         std::vector<double> const& divisors) {
  std::lock_guard const lock(mutex_);
  expect_unread_unchanged();
  std::vector<TableStep> all;
  for (std::size_t merged = 0; merged < rates.size(); ++merged) {
    all.push_back(
        {.number = step, .rates = {.of_tables = rates[merged]}, .divisor = static_cast<float>(divisors[merged])});
  }
  DropAtEnd const drop_at_end(*this);
  use_pending();
  change([&] { sharded_->apply_gradients(all); });
}

void TensorLookup::drop() {
  std::lock_guard const lock(mutex_);
  drop_pending();
}

void TensorLookup::drop_pending() {
  sharded_->drop_gradients();
  unread_.clear();
  std::ranges::fill(num_marked_, 0);
  for (auto& each : sent_) each.clear();
  pending_.clear();
}

void TensorLookup::scale(at::Tensor const& factor) {
  std::lock_guard const lock(mutex_);
  expect_unread_unchanged();
  use_pending();
  auto const on_device = factor.to(at::TensorOptions(at::kFloat).device(device_));
  for (std::size_t merged = 0; merged < tables_.size(); ++merged) {
    sharded_->scale_gradients(merged, static_cast<float const*>(on_device.const_data_ptr()));
  }
  unread_.clear();
}

at::Tensor TensorLookup::norm(std::size_t merged) {
  std::lock_guard const lock(mutex_);
  expect_unread_unchanged();
  use_pending();
  auto const squares = sharded_->gradient_squares(merged);
  std::erase_if(unread_, [merged](Unread const& each) { return each.merged == merged; });
  return borrow(squares.data(), {}, at::kDouble, device_, squares.owner).sqrt();
}

}  // namespace headway::embedding
