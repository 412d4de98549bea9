// SPDX-License-Identifier: Apache-2.0

// Life of a backend: connecting, settings, subgroups, coalescing, abort and shutdown.
//
// A backend owns its group through a GroupHandle, which it shares with the works that are not complete yet. So the
// group lives until the last of them, whoever holds it. shutdown() only drops the backend's reference, after peers
// have taken everything that this rank has sent.
//
// Threads: PyTorch calls with and without the interpreter lock. A call that may wait for another thread or for a peer
// releases it first. No lock of this class is held during a call of the group or of a delegate (the Gloo or NCCL group
// that reduces), since these may call back.

#include "backend/headway_backend.hpp"

#include "group/store_adaptor.hpp"
#include "runtime/interpreter.hpp"
#include "work/coalesced_work.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace headway::c10d_backend {

namespace {

std::unique_ptr<comm::Group> connect(c10::intrusive_ptr<c10d::Store> const& store, int rank, int size,
                                     HeadwayOptions const& options) {
  auto settings = options.group;
  settings.timeout = options.timeout;
  settings.name = options.group_name;
  settings.while_connecting = raise_pending_signals;
  settings.data_type_name = &data_type_name;
  StoreAdaptor adaptor(store);
  return translate_errors("connecting the group", [&] { return comm::Group::connect(rank, size, adaptor, settings); });
}

std::shared_ptr<GroupHandle> make_handle(std::unique_ptr<comm::Group> group, HeadwayOptions const& options) {
  std::vector<int> global_ranks(options.global_ranks_in_group.begin(), options.global_ranks_in_group.end());
  if (global_ranks.empty()) {  // The default group.
    global_ranks.resize(static_cast<std::size_t>(group->size()));
    std::iota(global_ranks.begin(), global_ranks.end(), 0);
  }
  FlightDump::Labels labels{.group_name = options.group_name,
                            .rank = group->rank(),
                            .global_ranks = std::move(global_ranks),
                            .capacity = group->options().flight_records};
  auto handle = std::make_shared<GroupHandle>(std::move(group),
                                              std::make_shared<FlightDump>(std::move(labels), options.flight_folder),
                                              options.cuda_slot_bytes);
  register_exit_hook(handle);
  return handle;
}

}  // namespace

HeadwayBackend::HeadwayBackend(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                               c10::intrusive_ptr<HeadwayOptions> options, DelegateFactory make_delegate)
    : HeadwayBackend(store, connect(store, rank, size, *options), options, std::move(make_delegate)) {}

HeadwayBackend::HeadwayBackend(c10::intrusive_ptr<c10d::Store> store, std::unique_ptr<comm::Group> group,
                               c10::intrusive_ptr<HeadwayOptions> options, DelegateFactory make_delegate)
    : Backend(group->rank(), group->size()),
      store_(std::move(store)),
      options_(std::move(options)),
      make_delegate_(std::move(make_delegate)),
      own_address_(group->monitor().own_address()),
      delegate_prefix_("reducer/" + group->monitor().generation() + "/"),
      barrier_prefix_("monitored_barrier/" + group->monitor().generation() + "/"),
      timeout_(options_->timeout),
      handle_(make_handle(std::move(group), *options_)) {
  init();
}

HeadwayBackend::~HeadwayBackend() {
  if (handle_ && handle_->is_inherited()) {  // In a forked child, the threads of the delegates do not exist.
    for (auto& [device, delegate] : delegates_) delegate->leak();
  }
  ReleasedGil const released;
  delegates_.clear();
  handle_.reset();
}

std::shared_ptr<GroupHandle> HeadwayBackend::handle() const {
  auto handle = handle_if_any();
  TORCH_CHECK_WITH(DistBackendError, handle, "headway: group '", options_->group_name, "' was shut down on rank ",
                   getRank());
  return handle;
}

std::shared_ptr<comm::Group> HeadwayBackend::shared_group() const {
  auto const handle = this->handle();
  return {handle, &handle->group()};
}

std::shared_ptr<GroupHandle> HeadwayBackend::handle_if_any() const {
  std::lock_guard const lock(mutex_);
  return handle_;
}

c10d::ErrorType HeadwayBackend::getError() {
  switch (handle()->group().monitor().health().code()) {
    case comm::StatusCode::kOk:
      return c10d::ErrorType::SUCCESS;
    case comm::StatusCode::kTimeout:
      return c10d::ErrorType::TIMEOUT;
    case comm::StatusCode::kPeerLost:
      return c10d::ErrorType::REMOTE_ERROR;
    default:
      return c10d::ErrorType::COMM_ERROR;
  }
}

void HeadwayBackend::setTimeout(std::chrono::milliseconds timeout) {
  timeout_ = timeout;
  {
    std::lock_guard const lock(mutex_);
    options_->timeout = timeout;
  }
  apply_timeout(timeout + extension_.load());
}

void HeadwayBackend::apply_timeout(std::chrono::milliseconds timeout) {
  handle()->group().admin().set_timeout(timeout);
  for (auto const& delegate : all_delegates()) delegate->set_timeout(std::min(timeout, comm::kLongestTimeout));
}

std::vector<std::shared_ptr<ReductionDelegate>> HeadwayBackend::all_delegates() const {
  std::lock_guard const lock(mutex_);
  std::vector<std::shared_ptr<ReductionDelegate>> all;
  for (auto const& [device, delegate] : delegates_) all.push_back(delegate);
  return all;
}

c10::intrusive_ptr<HeadwayOptions> HeadwayBackend::copy_options() const {
  std::lock_guard const lock(mutex_);
  return c10::make_intrusive<HeadwayOptions>(*options_);
}

int HeadwayBackend::recommended_max_lag(int channel) {
  return translate_errors("recommended_max_lag",
                          [&] { return handle()->group().monitor().recommended_max_lag(channel); });
}

void HeadwayBackend::set_max_lag(int max_lag, std::optional<int> channel) {
  translate_errors("set_max_lag", [&] { handle()->group().admin().set_max_lag(max_lag, channel); });
}

int HeadwayBackend::max_lag(int channel) {
  return translate_errors("max_lag", [&] { return handle()->group().admin().max_lag(channel); });
}

c10::intrusive_ptr<c10d::Backend> HeadwayBackend::create_subgroup(c10::intrusive_ptr<c10d::Store> const& store,
                                                                  int rank, int size,
                                                                  c10::intrusive_ptr<Options> const& options) {
  auto const ours = c10::dynamic_intrusive_pointer_cast<HeadwayOptions>(options);
  TORCH_CHECK_TYPE(ours, "headway: the options of a headway group must be headway.Options");
  auto const own_store = c10::make_intrusive<c10d::PrefixStore>("headway/" + ours->group_name, store);
  auto const own_options = c10::make_intrusive<HeadwayOptions>(*ours);
  own_options->flight_folder = options_->flight_folder;
  return c10::make_intrusive<HeadwayBackend>(own_store, rank, size, own_options, make_delegate_);
}

c10::intrusive_ptr<c10d::Backend> HeadwayBackend::split(c10::intrusive_ptr<c10d::Store> const& store,
                                                        std::vector<int> const& ranks,
                                                        c10::intrusive_ptr<Options> const& options) {
  auto const found = std::find(ranks.begin(), ranks.end(), getRank());
  if (found == ranks.end()) return nullptr;
  return create_subgroup(store, static_cast<int>(found - ranks.begin()), static_cast<int>(ranks.size()), options);
}

c10::intrusive_ptr<c10d::Backend> HeadwayBackend::merge(c10::intrusive_ptr<c10d::Store> const& store,
                                                        c10::intrusive_ptr<Options> const& options, int const& rank,
                                                        int const& size) {
  return create_subgroup(store, rank, size, options);
}

void HeadwayBackend::abort() {
  ReleasedGil const released;
  auto const handle = handle_if_any();
  if (!handle || handle->is_inherited()) return;
  handle->abort("abort() was called on rank " + std::to_string(getRank()), GroupHandle::kLongHookTime);
  for (auto const& delegate : all_delegates()) delegate->abort();
}

void HeadwayBackend::shutdown() {
  ReleasedGil const released;
  std::shared_ptr<GroupHandle> handle;
  std::shared_ptr<ReductionDelegate> nccl;
  {
    std::lock_guard const lock(mutex_);
    if (!handle_ || handle_->is_inherited()) return;
    handle = handle_;  // Kept in handle_ until the end, so that abort() can interrupt this call.
    if (auto const found = delegates_.find(c10::DeviceType::CUDA); found != delegates_.end()) nccl = found->second;
  }
  // Drops the backend's reference when this call ends, also by an exception.
  auto const left = std::shared_ptr<void>(nullptr, [this](void*) {
    std::lock_guard const lock(mutex_);
    handle_ = nullptr;
  });
  try {
    handle->hooks().wait_for_abort_hooks(GroupHandle::kLongHookTime);  // The program may end after this call.
    deliver(*handle);
  } catch (...) {
    if (nccl != nullptr) nccl->abort();
    throw;
  }
  // Gloo's group ends with its last work. NCCL's shutdown would wait for lost ranks, so a failed group aborts it.
  if (nccl != nullptr) handle->group().monitor().health().ok() ? nccl->shutdown() : nccl->abort();
}

void HeadwayBackend::deliver(GroupHandle& handle) {
  translate_errors("destroy_process_group", [&] {
    auto& group = handle.group();
    // In slices, so that Ctrl-C ends a program whose peer has stopped taking messages.
    for (;;) {
      auto status = group.admin().deliver(kSignalSlice);
      if (status.ok()) return;
      // An operation that runs out of its own time fails the group.
      if (status.code() != comm::StatusCode::kTimeout || !group.monitor().health().ok()) {
        throw comm::OperationError(std::move(status));
      }
      raise_pending_signals();
    }
  });
}

void HeadwayBackend::startCoalescing() {
  std::lock_guard const lock(mutex_);
  bool const is_new = coalescing_.try_emplace(std::this_thread::get_id()).second;
  TORCH_CHECK(is_new, "headway: startCoalescing() was called twice without endCoalescing()");
}

c10::intrusive_ptr<c10d::Work> HeadwayBackend::endCoalescing() {
  std::lock_guard const lock(mutex_);
  auto const found = coalescing_.extract(std::this_thread::get_id());
  TORCH_CHECK(!found.empty(), "headway: endCoalescing() was called without startCoalescing()");
  return c10::make_intrusive<CoalescedWork>(getRank(), std::move(found.mapped()));
}

c10::intrusive_ptr<c10d::Work> HeadwayBackend::record_if_coalescing(c10::intrusive_ptr<c10d::Work> work) {
  std::lock_guard const lock(mutex_);
  if (!coalescing_.empty()) {
    auto const found = coalescing_.find(std::this_thread::get_id());
    if (found != coalescing_.end()) found->second.push_back(work);
  }
  return work;
}

OpInfo HeadwayBackend::op_info(c10d::OpType type, char const* name, std::chrono::milliseconds timeout) {
  // c10d uses -1 for "not given"; some callers use 0.
  auto const own = (timeout.count() > 0 ? timeout : timeout_.load()) + current_extension();
  return {type, name, seq_++, std::min<std::chrono::milliseconds>(own, comm::kLongestTimeout), new_completion_key()};
}

}  // namespace headway::c10d_backend
