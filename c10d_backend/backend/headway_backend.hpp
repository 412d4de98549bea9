// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "group/group_handle.hpp"
#include "reduction/reduction_delegate.hpp"
#include "tensors/work_tensors.hpp"
#include "torch_headers.hpp"
#include "work/device_work.hpp"
#include "work/headway_work.hpp"

#include <headway/comm/device_group.hpp>
#include <headway/comm/group.hpp>
#include <headway/comm/group_owner.hpp>

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace headway::c10d_backend {

/// pg_options of a headway group: options of c10d and of libcomm. Copies are independent.
struct HeadwayOptions final : c10d::Backend::Options {
  explicit HeadwayOptions(comm::GroupOptions settings)
      : Options("headway", settings.timeout), group(std::move(settings)) {}

#if HEADWAY_TORCH_HAS_ABORT_HOOKS
  /// Without this, split_group() would share this object with the new group.
  c10::intrusive_ptr<Options> clone() const override { return c10::make_intrusive<HeadwayOptions>(*this); }
#endif

  comm::GroupOptions group;  ///< Its `timeout` and `name` are replaced by those of the base class when a group is made.
  std::size_t cuda_slot_bytes = comm::DeviceOptions().slot_bytes;  ///< Largest fragment of a block on a CUDA device.
  std::string flight_folder;    ///< Folder for a failed group's flight records (last operations); empty: not written.
  bool has_slot_bytes = false;  ///< True if the user set slot_bytes, which then overrides the environment.
  bool has_timeout = false;     ///< True if the user set a timeout, which then overrides that of init_process_group().
};

/// Creates the backend that reduces tensors of one device type for a headway group. `address`: numeric address of this
/// host by which the ranks reach each other.
using DelegateFactory = std::function<c10::intrusive_ptr<c10d::Backend>(c10::intrusive_ptr<c10d::Store> store, int rank,
                                                                        int size, std::chrono::milliseconds timeout,
                                                                        std::string device, std::string address)>;

class HeadwayBackend;
class ReductionTensors;

/// Result of HeadwayBackend::shrink_to_survivors(); see comm::ShrunkGroup.
struct ShrunkBackend {
  c10::intrusive_ptr<HeadwayBackend> backend;
  std::vector<int> ranks;                  ///< Rank in the old group of each new rank, ascending.
  std::vector<std::uint64_t> all_to_alls;  ///< All-to-alls of the old group that every member completed, by channel.
  std::uint64_t collectives = 0;           ///< Other collectives of the old group that every member completed.
};

/// The headway backend of torch.distributed on top of a comm::Group. It moves data itself and delegates reductions.
///
/// Thread-safe. Overrides keep PyTorch's names and rules: all ranks start collectives in the same order.
///
/// Errors: wrong arguments throw c10::ValueError or c10::TypeError before anything is sent, and the group goes on. A
/// failure of the communication throws c10::DistBackendError from wait(), and the group has failed for good: every
/// later call throws. shrink_to_survivors() makes a new group of the ranks that are left.
class HeadwayBackend final : public c10d::Backend, public comm::GroupOwner {
 public:
  /// Connects all ranks through `store`. Blocks until all are connected.
  HeadwayBackend(c10::intrusive_ptr<c10d::Store> store, int rank, int size, c10::intrusive_ptr<HeadwayOptions> options,
                 DelegateFactory make_delegate);
  /// Takes over a connected group. `store` serves its delegates.
  HeadwayBackend(c10::intrusive_ptr<c10d::Store> store, std::unique_ptr<comm::Group> group,
                 c10::intrusive_ptr<HeadwayOptions> options, DelegateFactory make_delegate);
  ~HeadwayBackend() override;

  // Properties and settings (headway_backend.cpp).
  std::string const getBackendName() const override { return "headway"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  bool supportsSplitting() const override { return true; }
  bool supportsCoalescing() const override { return true; }
  c10d::ErrorType getError() override;
  void setTimeout(std::chrono::milliseconds timeout) override;
  void setSequenceNumberForGroup() override {}  // Starts at 0 on every rank, so there is nothing to agree on.
  std::uint64_t getSequenceNumberForGroup() override { return seq_; }
  void enableCollectivesTiming() override {}  // Works always record their duration.

  // Hooks, and extensions of the timeout (hooks.cpp).
#if HEADWAY_TORCH_HAS_ABORT_HOOKS
  void addEphemeralTimeout(std::chrono::milliseconds const& timeout) override;
  void registerAbortHook(std::int64_t hook_id, c10d::AbortHook hook) override;
  void unregisterAbortHook(std::int64_t hook_id) override;
#endif
#if HEADWAY_TORCH_HAS_COMPLETION_HOOKS
  bool supportsAbortHooks() const override { return true; }
  bool supportsCompletionHooks() const override { return true; }
  void registerCompletionHook(std::int64_t hook_id, c10d::CompletionHook hook) override;
  void unregisterCompletionHook(std::int64_t hook_id) override;
#endif

  // Life cycle.
  c10::intrusive_ptr<Backend> split(c10::intrusive_ptr<c10d::Store> const& store, std::vector<int> const& ranks,
                                    c10::intrusive_ptr<Options> const& options) override;
  c10::intrusive_ptr<Backend> merge(c10::intrusive_ptr<c10d::Store> const& store,
                                    c10::intrusive_ptr<Options> const& options, int const& rank,
                                    int const& size) override;
  // Shrinking (shrink.cpp).
  bool supportsShrinking() const override { return true; }
  /// Excludes exactly these ranks. @throws c10::DistBackendError if more ranks turn out to be lost.
  c10::intrusive_ptr<Backend> shrink(std::vector<std::int64_t> const& ranks_to_exclude, int shrink_flags,
                                     c10::intrusive_ptr<Options> const& opts_override) override;
  /// Creates a backend of the surviving ranks. This one has failed afterwards.
  ShrunkBackend shrink_to_survivors(std::vector<int> const& ranks_to_exclude, std::chrono::milliseconds timeout);
  void abort() override;
  /// Waits until peers have taken what this rank has started to send, then leaves the group. Works that are still held
  /// continue; peers learn at once that this rank starts no more.
  /// @throws c10::DistBackendError if a peer does not take its message within the operation's timeout, or is lost. The
  /// group is left in any case.
  void shutdown() override;
  void startCoalescing() override;
  c10::intrusive_ptr<c10d::Work> endCoalescing() override;

  // Data movement (data_movement.cpp).
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           c10d::BroadcastOptions const& options) override;
  c10::intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                           std::vector<at::Tensor>& inputs,
                                           c10d::AllgatherOptions const& options) override;
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 c10d::AllgatherOptions const& options) override;
  c10::intrusive_ptr<c10d::Work> allgather_coalesced(std::vector<std::vector<at::Tensor>>& outputs,
                                                     std::vector<at::Tensor>& inputs,
                                                     c10d::AllgatherOptions const& options) override;
  c10::intrusive_ptr<c10d::Work> allgather_into_tensor_coalesced(std::vector<at::Tensor>& outputs,
                                                                 std::vector<at::Tensor>& inputs,
                                                                 c10d::AllgatherOptions const& options) override;
  c10::intrusive_ptr<c10d::Work> gather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                                        c10d::GatherOptions const& options) override;
#if HEADWAY_TORCH_HAS_ABORT_HOOKS
  c10::intrusive_ptr<c10d::Work> gather_single(at::Tensor& output, at::Tensor& input,
                                               c10d::GatherOptions const& options) override;
#endif
  c10::intrusive_ptr<c10d::Work> scatter(std::vector<at::Tensor>& outputs, std::vector<std::vector<at::Tensor>>& inputs,
                                         c10d::ScatterOptions const& options) override;
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<std::int64_t>& output_splits,
                                               std::vector<std::int64_t>& input_splits,
                                               c10d::AllToAllOptions const& options) override;
  c10::intrusive_ptr<c10d::Work> alltoall(std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
                                          c10d::AllToAllOptions const& options) override;
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int peer, int tag) override;
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int peer, int tag) override;
  c10::intrusive_ptr<c10d::Work> recvAnysource(std::vector<at::Tensor>& tensors, int tag) override;
  c10::intrusive_ptr<c10d::Work> barrier(c10d::BarrierOptions const& options) override;

  /// alltoall_base() on one of the group's channels, for which c10d has no parameter. Channels are independent
  /// sequences of all-to-alls, numbered from 0.
  c10::intrusive_ptr<c10d::Work> all_to_all_on_channel(at::Tensor const& output, at::Tensor const& input,
                                                       std::vector<std::int64_t> const& output_splits,
                                                       std::vector<std::int64_t> const& input_splits, int channel,
                                                       std::chrono::milliseconds timeout);

  /// Starts an exchange of slots as a work that owns `tensors`. A slot is receive memory that is the output itself
  /// (slot_ring.hpp).
  c10::intrusive_ptr<DeviceWork> launch_in_slots(
      WorkTensors tensors, std::vector<at::Tensor> const& inputs, std::chrono::milliseconds timeout,
      std::function<comm::DeviceOperationPtr(comm::DeviceCall const&)> const& start);

  // Reductions, done by the delegate (reductions.cpp).
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           c10d::AllreduceOptions const& options) override;
  c10::intrusive_ptr<c10d::Work> allreduce_sparse(std::vector<at::Tensor>& tensors,
                                                  c10d::AllreduceOptions const& options) override;
  c10::intrusive_ptr<c10d::Work> allreduce_coalesced(std::vector<at::Tensor>& tensors,
                                                     c10d::AllreduceCoalescedOptions const& options) override;
  c10::intrusive_ptr<c10d::Work> reduce(std::vector<at::Tensor>& tensors, c10d::ReduceOptions const& options) override;
  c10::intrusive_ptr<c10d::Work> reduce_scatter(std::vector<at::Tensor>& outputs,
                                                std::vector<std::vector<at::Tensor>>& inputs,
                                                c10d::ReduceScatterOptions const& options) override;
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                      c10d::ReduceScatterOptions const& options) override;
  c10::intrusive_ptr<c10d::Work> reduce_scatter_tensor_coalesced(std::vector<at::Tensor>& outputs,
                                                                 std::vector<at::Tensor>& inputs,
                                                                 c10d::ReduceScatterOptions const& options) override;

  /// A barrier by the store (monitored_barrier.cpp). @throws c10::DistBackendError that names the ranks that have not
  /// come within the timeout: on rank 0 all of them or the first, on other ranks the error of rank 0.
  void monitoredBarrier(c10d::BarrierOptions const& options, bool wait_all_ranks) override;

  /// comm::GroupOwner: other libraries reach the group by it. @throws c10::DistBackendError after shutdown().
  [[nodiscard]] std::shared_ptr<comm::Group> shared_group() const override;
  /// The group, for statistics and traces. @throws c10::DistBackendError after shutdown().
  [[nodiscard]] std::shared_ptr<GroupHandle> handle() const;
  /// The same, or null after shutdown().
  [[nodiscard]] std::shared_ptr<GroupHandle> handle_if_any() const;
  [[nodiscard]] c10::intrusive_ptr<c10d::Store> const& store() const { return store_; }
  /// Sets max_lag of `channel`, or of all channels if none is given: all-to-alls that this rank may run ahead of the
  /// slowest rank.
  void set_max_lag(int max_lag, std::optional<int> channel);
  int max_lag(int channel);
  /// Smallest max_lag that is at most 2.5% slower than the best one (comm::GroupMonitor::recommended_max_lag()).
  int recommended_max_lag(int channel);

 private:
  /// Waits until the store has all `keys`. @returns false if `timeout` passes first.
  /// @throws c10::DistBackendError if the group has failed.
  bool wait_for_keys(std::vector<std::string> const& keys, std::chrono::milliseconds timeout);
  /// Gives the group and its delegates the timeout of operations that start now.
  void apply_timeout(std::chrono::milliseconds timeout);
  /// Sum of the timeout extensions that have not ended. Applies a change of it.
  std::chrono::milliseconds current_extension();
  OpInfo op_info(c10d::OpType type, char const* name, std::chrono::milliseconds timeout);
  /// Starts operations as one work that owns `tensors`. `start` gets a comm::Group, or a DeviceGroupAdaptor for CUDA
  /// tensors. `inputs` are for profilers.
  template <typename Start>
  c10::intrusive_ptr<c10d::Work> launch(OpInfo const& op, WorkTensors tensors, std::vector<at::Tensor> const& inputs,
                                        Start&& start);
  /// launch() of operations on CPU tensors, or on none.
  template <typename Start>
  c10::intrusive_ptr<c10d::Work> launch_on_host(OpInfo const& op, WorkTensors tensors,
                                                std::vector<at::Tensor> const& inputs, Start&& start);
  /// Starts `call` on the delegate for the device of inputs[0]. `epilogue` runs after the reduction, before anyone sees
  /// it complete.
  c10::intrusive_ptr<c10d::Work> launch_on_delegate(OpInfo const& op, std::vector<at::Tensor> const& inputs,
                                                    ReductionDelegate::Call call,
                                                    std::optional<Epilogue> epilogue = std::nullopt);
  template <typename ReduceOptions>
  using ReduceMethod = c10::intrusive_ptr<c10d::Work> (c10d::Backend::*)(std::vector<at::Tensor>&,
                                                                         ReduceOptions const&);
  enum class Role { kReceiver, kContributor };  ///< Whether this rank's tensors receive the result.
  /// Starts `method` of the delegate on `tensors`.
  template <typename ReduceOptions>
  c10::intrusive_ptr<c10d::Work> reduce_in_place(c10d::OpType type, char const* name,
                                                 std::vector<at::Tensor> const& tensors, ReduceOptions options,
                                                 ReduceMethod<ReduceOptions> method, Role role = Role::kReceiver);
  /// Does reduce_scatter as an all_reduce of `buffers`; `reduction` then copies this rank's parts to `outputs`.
  c10::intrusive_ptr<c10d::Work> reduce_and_keep_part(OpInfo const& op, std::vector<at::Tensor> const& inputs,
                                                      std::vector<at::Tensor> const& outputs,
                                                      ReductionTensors const& reduction,
                                                      std::vector<at::Tensor> buffers);
  /// Waits until peers have taken all messages of the group. Checks for Ctrl-C.
  void deliver(GroupHandle& handle);
  /// The delegate for a device type, created at the first call.
  std::shared_ptr<ReductionDelegate> delegate_for(at::Device device);
  /// Copies the list, for calls without the lock.
  std::vector<std::shared_ptr<ReductionDelegate>> all_delegates() const;
  /// Copies the options under the lock, because setTimeout() changes them.
  c10::intrusive_ptr<HeadwayOptions> copy_options() const;
  /// Returns `work`, and records it if this thread is between startCoalescing() and endCoalescing().
  c10::intrusive_ptr<c10d::Work> record_if_coalescing(c10::intrusive_ptr<c10d::Work> work);
  c10::intrusive_ptr<Backend> create_subgroup(c10::intrusive_ptr<c10d::Store> const& store, int rank, int size,
                                              c10::intrusive_ptr<Options> const& options);

  c10::intrusive_ptr<c10d::Store> store_;
  c10::intrusive_ptr<HeadwayOptions> options_;  ///< mutex_ guards `timeout`. The rest never changes.
  DelegateFactory make_delegate_;
  std::string own_address_;      ///< Address by which ranks reach this one (comm::GroupMonitor). For the delegates.
  std::string delegate_prefix_;  ///< Prefix of the delegates' keys: the store may hold those of earlier groups.
  std::string barrier_prefix_;   ///< Prefix of the keys of monitored barriers, likewise.
  std::atomic<std::chrono::milliseconds> timeout_;      ///< Timeout of operations whose caller gives none.
  std::atomic<std::chrono::milliseconds> extension_{};  ///< Sum of the timeout extensions that were applied last.
  std::atomic<std::uint64_t> seq_ = 0;                  ///< Operations started: sequence number of the next one.
  std::atomic<std::uint64_t> num_monitored_barriers_ = 0;
  std::string last_barrier_result_;  ///< Rank 0: key of the last result in the store. Only monitoredBarrier() uses it.

  mutable std::mutex mutex_;  ///< Guards the members below. Never held during a call of the group or a delegate.
  std::shared_ptr<GroupHandle> handle_;  ///< Null after shutdown().
  std::map<c10::DeviceType, std::shared_ptr<ReductionDelegate>> delegates_;
  /// Works started since startCoalescing(), by the thread that called it.
  std::map<std::thread::id, std::vector<c10::intrusive_ptr<c10d::Work>>> coalescing_;
};

}  // namespace headway::c10d_backend

#include "backend/launch.inl"
