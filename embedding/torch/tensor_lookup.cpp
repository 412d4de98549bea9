// SPDX-License-Identifier: Apache-2.0

// Lookups of a collection for PyTorch: a ShardedTable on tensors, with one node of autograd.
//
// Idea: the node has one dummy input per merged table (its anchor) and the weights that learn. Its outputs are the
// embeddings of the features. Its backward pass joins the gradients of the features of each merged table, and sends
// them to the owners of the rows, where they wait for apply(). So the gradients of anchors are never returned to
// autograd.
//
// Example: features "user" and "tags" share a merged table. Their embeddings are two views of one array of bags. If
// autograd gives back two adjacent views, they are used as one array without a copy.
//
// Invariants: outputs are made on the stream of the caller. A batch that other streams used is freed only after these.
//   Until a gradient is added, nobody may write to its memory: checked by the version of the tensor. Gradients whose
//   storage other tensors share, or whose memory autograd may use for another batch, are added at once.
// Complexity: that of ShardedTable, and O(features) on the host. No operator of PyTorch is called per feature.

#include "tensor_lookup.hpp"

#include "devices.hpp"
#include "headway/base/status.hpp"
#include "process_group_exchanger.hpp"

#include <ATen/EmptyTensor.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/basic_ops.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>

namespace headway::embedding {

namespace {

/// Number of backward passes without apply() after which a warning asks for it.
constexpr std::size_t kManyGradients = 64;

c10::Stream current_stream(at::Device device) { return c10::impl::VirtualGuardImpl(device.type()).getStream(device); }

/// Frees a block. If another stream than that of the allocation uses it, the allocator keeps it until that one is done.
class StreamOrderedFree {
 public:
  StreamOrderedFree(c10::DataPtr memory, std::size_t num_bytes, c10::Stream made_on)
      : memory_(std::make_shared<c10::DataPtr>(std::move(memory))), num_bytes_(num_bytes), made_on_(made_on) {}

  void operator()(void* /*data*/) const {
    auto const used_on = current_stream(made_on_.device());
    if (used_on == made_on_) return;
    c10::Storage storage(c10::Storage::use_byte_size_t(), num_bytes_, std::move(*memory_));
    auto const tensor = at::detail::make_tensor<at::TensorImpl>(
        std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CUDA), caffe2::TypeMeta::Make<std::uint8_t>());
    tensor.record_stream(used_on);
  }

 private:
  std::shared_ptr<c10::DataPtr> memory_;
  std::size_t num_bytes_;
  c10::Stream made_on_;
};

std::shared_ptr<BatchDevice> batch_device(at::Device device, std::shared_ptr<base::ThreadPool> thread_pool) {
  if (device.is_cpu()) return make_host_batch_device(std::move(thread_pool));
  // torch's caching allocator, without its dispatcher.
  auto* const allocator = empty({0}, at::kByte, device).storage().allocator();
  auto allocate = [device, allocator](std::size_t num_bytes) {
    c10::DeviceGuard const guard(device);
    auto memory = allocator->allocate(num_bytes);
    void* const data = memory.get();
    return std::shared_ptr<void>(data, StreamOrderedFree(std::move(memory), num_bytes, current_stream(device)));
  };
  return make_cuda_batch_device(place_of(device), std::move(allocate));
}

/// An uninitialised matrix. On the CPU it does not go through torch's dispatcher.
at::Tensor empty_matrix(std::int64_t rows, std::int64_t columns, at::Device device) {
  if (device.is_cpu()) return at::detail::empty_cpu({rows, columns}, at::TensorOptions(at::kFloat));
  return empty({rows, columns}, at::kFloat, device);
}

/// Rows of a matrix, as a tensor that shares its storage. It does not go through torch's dispatcher.
at::Tensor rows_of(at::Tensor const& matrix, std::int64_t first, std::int64_t count) {
  auto view = at::detail::make_tensor<at::TensorImpl>(c10::Storage(matrix.storage()), matrix.key_set(), matrix.dtype());
  auto* const impl = view.unsafeGetTensorImpl();
  impl->set_storage_offset(matrix.storage_offset() + first * matrix.size(1));
  impl->set_sizes_contiguous({count, matrix.size(1)});
  return view;
}

bool are_adjacent(std::span<at::Tensor const> pieces) {
  auto const* end = static_cast<float const*>(pieces.front().const_data_ptr());
  for (auto const& piece : pieces) {
    if (!piece.defined() || !piece.is_contiguous() || !piece.storage().is_alias_of(pieces.front().storage()) ||
        piece.const_data_ptr() != end) {
      return false;
    }
    end += piece.numel();
  }
  return true;
}

/// Joins the gradients of the features of a merged table. Nothing is copied if they are adjacent in memory.
/// @param pieces (rows, dim) each, or undefined: zeros @param num_rows of each piece
/// @returns (all rows, dim) or undefined if all pieces are
at::Tensor join_rows(std::span<at::Tensor const> pieces, std::span<std::int64_t const> num_rows) {
  auto const some = std::ranges::find_if(pieces, &at::Tensor::defined);
  if (some == pieces.end()) return {};
  if (pieces.size() == 1) return some->contiguous();
  if (pieces.front().defined() && are_adjacent(pieces)) {
    auto joined = rows_of(pieces.front(), 0, std::accumulate(num_rows.begin(), num_rows.end(), std::int64_t{0}));
    // Writes to the pieces, which are views of one tensor, count as writes to the whole.
    joined.unsafeGetTensorImpl()->set_version_counter(pieces.front().unsafeGetTensorImpl()->version_counter());
    return joined;
  }
  std::vector<at::Tensor> all;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    all.push_back(pieces[i].defined() ? pieces[i] : at::zeros({num_rows[i], some->size(1)}, some->options()));
  }
  return at::cat(all);
}

bool has_storage_of_its_own(at::Tensor const& tensor) {
  return static_cast<std::size_t>(tensor.numel()) * tensor.element_size() == tensor.storage().nbytes();
}

/// A block that keeps a tensor alive. If another stream uses it last, the allocator waits for that one.
Block<float const> block_of(at::Tensor const& tensor) {
  std::span const values(static_cast<float const*>(tensor.const_data_ptr()), static_cast<std::size_t>(tensor.numel()));
  if (tensor.is_cpu()) return {values, std::make_shared<at::Tensor>(tensor)};
  auto const release = [made_on = current_stream(tensor.device())](at::Tensor const* kept) {
    auto const used_on = current_stream(kept->device());
    if (used_on != made_on) kept->record_stream(used_on);
    delete kept;
  };
  return {values, std::shared_ptr<at::Tensor const>(new at::Tensor(tensor), release)};
}

/// A tensor that raises if it is differentiated: second derivatives are not there.
at::Tensor without_gradient(at::Tensor const& tensor) {
  at::AutoGradMode const with_grad(true);
  auto const input = tensor.detach().requires_grad_();
  auto const error = std::make_shared<torch::autograd::DelayedError>(
      "embeddings of a HashTableCollection have no second derivative", 1);
  return (*error)({input}).front();
}

}  // namespace

/// The node of a lookup. See the top of this file.
struct ExpandFunction : torch::autograd::Function<ExpandFunction> {
  using Context = torch::autograd::AutogradContext;
  using Tensors = torch::autograd::variable_list;

  static Tensors forward(Context* context, std::shared_ptr<TensorLookup> const& lookup,
                         TensorLookup::BatchPtr const& batch, at::TensorList inputs) {
    at::AutoDispatchBelowADInplaceOrView const below;
    context->set_materialize_grads(false);
    context->saved_data["batch"] = c10::IValue::make_capsule(batch);
    context->saved_data["num_inputs"] = static_cast<std::int64_t>(inputs.size());
    context->saved_data["lookup"] = c10::IValue::make_capsule(c10::make_intrusive<Holder>(lookup));
    return lookup->expand(*batch);
  }

  static Tensors backward(Context* context, Tensors const& gradients) {
    bool const makes_graph = at::GradMode::is_enabled();
    at::NoGradGuard const no_grad;
    auto const batch = c10::static_intrusive_pointer_cast<TensorBatch>(context->saved_data.at("batch").toCapsule());
    auto const lookup =
        c10::static_intrusive_pointer_cast<Holder>(context->saved_data.at("lookup").toCapsule())->lookup;
    auto const num_inputs = static_cast<std::size_t>(context->saved_data.at("num_inputs").toInt());
    lookup->take_gradients(batch, gradients);
    Tensors result(2 + num_inputs);  // The lookup and the batch have none.
    std::size_t next = result.size() - batch->learned_.size();
    for (auto const& learned : batch->learned_) {
      auto const& of_feature = gradients[learned.feature];
      if (of_feature.defined()) result[next] = lookup->gradient_of_weights(*batch, learned, of_feature);
      if (of_feature.defined() && makes_graph) result[next] = without_gradient(result[next]);
      ++next;
    }
    return result;
  }

  struct Holder : torch::CustomClassHolder {
    explicit Holder(std::shared_ptr<TensorLookup> the_lookup) : lookup(std::move(the_lookup)) {}
    std::shared_ptr<TensorLookup> lookup;
  };
};

// Blocks go back to the streams that made them. Streams come in the order of their first use, and one uses the blocks
// of those before it, so these wait for it. An exchange that has not been waited for may take a while to free its
// parts, so other Python threads run meanwhile.
TensorBatch::~TensorBatch() {
  if (is_waiting_) --*num_waiting_;
  std::optional<pybind11::gil_scoped_release> released;
  if (Py_IsInitialized() && PyGILState_Check()) released.emplace();
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
      num_marked_(tables.size()),
      sent_(tables.size()) {
  std::vector<MergedTable> merged;
  for (auto const& each : tables) {
    tables_.push_back(each.table);
    merged.push_back({.options = each.table->options(),
                      .tables = each.numbers,
                      .reads_unknown_as_zeros = each.reads_unknown_as_zeros,
                      .made = each.table->shared_table()});
    auto const has = [&each](std::uint32_t number) {
      return std::ranges::find(each.numbers, number) != each.numbers.end();
    };
    first_feature_.push_back(
        static_cast<std::size_t>(std::ranges::find_if(feature_tables, has) - feature_tables.begin()));
  }
  first_feature_.push_back(feature_tables.size());
  std::unique_ptr<Exchanger> exchanger;
  if (group == nullptr || group->getSize() == 1) {
    exchanger = make_local_exchanger();
  } else {
    exchanger = make_exchanger(group, device);
  }
  sharded_ = std::make_unique<ShardedTable>(
      merged, std::move(exchanger),
      ShardedTableOptions{.dedup = dedup, .thread_pool = thread_pool, .device = batch_device(device, thread_pool)});
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
    for (auto const& batch : pending_) use(*batch);
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
    sharded_->finish(*batch->batch_);
  }
  std::vector<at::Tensor> inputs = anchors;
  bool const has_autograd = at::GradMode::is_enabled();
  if (has_autograd) {
    for (auto const& learned : begun->learned_) inputs.push_back(learned.weights);
    batch->is_waiting_ = true;
    ++*num_waiting_;
  }
  auto outputs =
      has_autograd ? ExpandFunction::apply(shared_from_this(), batch, at::TensorList(inputs)) : expand(*batch);
  sharded_->forget_embeddings(*batch->batch_);
  return outputs;
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
  sharded_->start_keys(*batch->batch_);
}

void TensorLookup::look_up(BatchPtr const& batch, bool inserts) {
  std::lock_guard const lock(mutex_);
  use(*batch);
  batch->inserts_ = inserts;
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
  struct DropAtEnd {  // Also after an error of the rates: the next backward pass must not apply these too.
    TensorLookup& lookup;
    ~DropAtEnd() { lookup.drop_pending(); }
  } const drop_at_end{*this};
  static_cast<void>(sharded_->finish_gradients(*batch->batch_));
  change([&] { sharded_->apply_gradients(all); });
}

std::uint64_t TensorLookup::num_refused(BatchPtr const& batch) const {
  std::lock_guard const lock(mutex_);
  std::uint64_t sum = 0;
  for (std::size_t merged = 0; merged < tables_.size(); ++merged) sum += sharded_->num_refused(*batch->batch_, merged);
  return sum;
}

void TensorLookup::replace_tables(std::vector<std::shared_ptr<TensorTable>> const& tables) {
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
  pending_.push_back(batch);
  if (pending_.size() == kManyGradients) {
    TORCH_WARN("the gradients of ", kManyGradients,
               " backward passes wait for optimizer.step() of a HashTableCollection: is it called?");
  }
}

at::Tensor TensorLookup::tensor_of(std::span<float const> values, std::shared_ptr<void const> owner,
                                   std::int64_t dim) const {
  return at::from_blob(
      const_cast<float*>(values.data()), {static_cast<std::int64_t>(values.size()) / dim, dim},
      [owner = std::move(owner)](void*) {}, at::TensorOptions(at::kFloat).device(device_), device_);
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
  auto const options = at::TensorOptions(at::kInt).device(device_);
  auto const inverse = at::from_blob(
      unique.inverse_indices.data() + learned.first_key, {num_keys}, [](void*) {}, options, device_);
  auto const dim = static_cast<std::int64_t>(tables_[learned.merged]->table().dim());
  auto of_keys = tensor_of(embeddings.span, embeddings.owner, dim).index_select(0, inverse);
  return of_keys.mul_(of_bags).sum(1).to(learned.type);
}

std::vector<std::pair<at::Tensor, std::optional<at::Tensor>>> TensorLookup::new_gradients(std::size_t merged) {
  std::lock_guard const lock(mutex_);
  if (num_marked_[merged] < sharded_->num_pending()) expect_unread_unchanged();
  for (auto const& batch : pending_) use(*batch);
  std::vector<std::pair<at::Tensor, std::optional<at::Tensor>>> result;
  auto const dim = static_cast<std::int64_t>(tables_[merged]->table().dim());
  for (auto const& [keys, values] : sharded_->add_gradients(merged, num_marked_[merged])) {
    std::optional<at::Tensor> num_known;
    if (keys.num_known != nullptr) {
      num_known = at::from_blob(
          const_cast<std::uint32_t*>(keys.num_known), {1}, [](void*) {}, at::TensorOptions(at::kInt).device(device_),
          device_);
    }
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
  struct DropAtEnd {
    TensorLookup& lookup;
    ~DropAtEnd() { lookup.drop_pending(); }
  } const drop_at_end{*this};
  for (auto const& batch : pending_) use(*batch);
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
  for (auto const& batch : pending_) use(*batch);
  auto const on_device = factor.to(at::TensorOptions(at::kFloat).device(device_));
  for (std::size_t merged = 0; merged < tables_.size(); ++merged) {
    sharded_->scale_gradients(merged, static_cast<float const*>(on_device.const_data_ptr()));
  }
  unread_.clear();
}

at::Tensor TensorLookup::norm(std::size_t merged) {
  std::lock_guard const lock(mutex_);
  expect_unread_unchanged();
  for (auto const& batch : pending_) use(*batch);
  auto const squares = sharded_->gradient_squares(merged);
  std::erase_if(unread_, [merged](Unread const& each) { return each.merged == merged; });
  return at::from_blob(
             squares.data(), {}, [owner = squares.owner](void*) {}, at::TensorOptions(at::kDouble).device(device_),
             device_)
      .sqrt();
}

}  // namespace headway::embedding
