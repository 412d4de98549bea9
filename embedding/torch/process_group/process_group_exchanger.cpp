// SPDX-License-Identifier: Apache-2.0

// An exchange is one all-to-all of bytes. A block is the bytes for, or from, one rank. The blocks of all ranks lie one
// after the other in memory, so they are one tensor, with a split for each rank.

#include "process_group/process_group_exchanger.hpp"

#include "headway/base/status.hpp"
#include "headway/comm/group_owner.hpp"
#include "headway/embedding/group_exchanger.hpp"
#include "interpreter.hpp"

#include <cstdint>
#include <exception>
#include <utility>

namespace headway::embedding {

namespace {

/// An all-to-all that was started. Null work: it has been waited for.
class Started final : public Exchanger::Exchange {
 public:
  Started(c10::intrusive_ptr<c10d::Work> work, at::Device device) : work_(std::move(work)), device_(device) {}
  Started(Started const&) = delete;
  Started& operator=(Started const&) = delete;
  /// On the CPU it does not wait: the work keeps its tensors alive, and these keep the blocks. On a device the caller's
  /// stream waits, not the host.
  ~Started() override {
    if (work_ == nullptr || device_.is_cpu()) return;
    try {
      work_->wait();
    } catch (std::exception const&) {  // The group has failed, so it no longer uses the blocks.
    }
  }
  void wait() override {
    if (work_ != nullptr) work_->wait();
    work_.reset();
  }
  [[nodiscard]] bool is_done() override { return work_ == nullptr || work_->isCompleted(); }
  void wait_on(CudaStream stream) override {
    // The number of a stream that is not torch's own is its address, as in c10::cuda::getStreamFromExternal(), which
    // this extension does not link.
    auto const id = static_cast<c10::StreamId>(reinterpret_cast<std::intptr_t>(stream));
    c10::StreamGuard const guard(c10::Stream(c10::Stream::UNSAFE, device_, id));
    work_->wait();
  }

 private:
  c10::intrusive_ptr<c10d::Work> work_;
  at::Device device_;
};

/// Starts an all-to-all of bytes, by the name that this version of torch has for it.
template <class Group>
c10::intrusive_ptr<c10d::Work> all_to_all(Group& group, at::Tensor& out, at::Tensor& in,
                                          std::vector<std::int64_t>& receive_sizes,
                                          std::vector<std::int64_t>& send_sizes) {
  c10d::AllToAllOptions options;
  options.asyncOp = true;  // Otherwise NCCL would run it on the caller's stream.
  if constexpr (requires { group.all_to_all_single(out, in, receive_sizes, send_sizes, options); }) {
    return group.all_to_all_single(out, in, receive_sizes, send_sizes, options);
  } else {
    return group.alltoall_base(out, in, receive_sizes, send_sizes, options);
  }
}

/// A tensor of bytes that shares the memory of blocks which lie one after the other, and keeps it.
template <class Byte>
at::Tensor bytes_of(std::span<std::span<Byte> const> blocks, std::vector<std::int64_t> const& sizes, at::Device device,
                    std::shared_ptr<void const> const& memory) {
  std::int64_t total = 0;
  Byte* first = nullptr;
  for (std::size_t rank = 0; rank < blocks.size(); ++rank) {
    if (first == nullptr && sizes[rank] > 0) first = blocks[rank].data();
    base::expects(sizes[rank] == 0 || blocks[rank].data() == first + total, "blocks lie one after the other in memory");
    total += sizes[rank];
  }
  auto const options = at::TensorOptions(at::kByte).device(device);
  if (total == 0) return at::empty({0}, options);
  return at::from_blob(
      const_cast<std::byte*>(first), {total}, [memory](void*) {}, options, device);
}

template <class Byte>
std::vector<std::int64_t> sizes_of(std::span<std::span<Byte> const> blocks) {
  std::vector<std::int64_t> sizes;
  for (auto const& block : blocks) sizes.push_back(static_cast<std::int64_t>(block.size()));
  return sizes;
}

}  // namespace

std::unique_ptr<Exchanger::Exchange> ProcessGroupExchanger::start(std::span<std::span<std::byte const> const> sends,
                                                                  std::span<std::span<std::byte> const> receives,
                                                                  std::shared_ptr<void const> memory,
                                                                  std::span<std::size_t> received_bytes) {
  base::expects(received_bytes.empty(), "a process group needs the sizes of blocks before");
  auto send_sizes = sizes_of(sends), receive_sizes = sizes_of(receives);
  auto in = bytes_of(sends, send_sizes, device_, memory), out = bytes_of(receives, receive_sizes, device_, memory);
  return std::make_unique<Started>(all_to_all(*group_, out, in, receive_sizes, send_sizes), device_);
}

std::unique_ptr<Exchanger::Exchange> ProcessGroupExchanger::send(std::span<std::byte const> /*block*/, int /*peer*/,
                                                                 std::uint64_t /*number*/,
                                                                 std::shared_ptr<void const> /*memory*/) {
  throw base::UsageError("exchanges of a process group have no messages between two ranks");
}

std::unique_ptr<Exchanger::Exchange> ProcessGroupExchanger::receive(std::span<std::byte> /*block*/, int /*peer*/,
                                                                    std::uint64_t /*number*/,
                                                                    std::shared_ptr<void const> /*memory*/) {
  throw base::UsageError("exchanges of a process group have no messages between two ranks");
}

// Sends nothing. ShardedTable uses it to compare settings; the collections of Python have done that already, by an
// exchange of their own.
std::vector<std::string> ProcessGroupExchanger::all_gather(std::string const& text) {
  return std::vector<std::string>(static_cast<std::size_t>(size()), text);
}

namespace {

/// Called while a group waits, so that Ctrl-C ends the wait. Throws what a signal handler raises.
void raise_pending_signals() {
  if (interpreter().run_signal_handlers != nullptr) interpreter().run_signal_handlers();
}

/// Calls `function`, and turns errors of libcomm into those of torch.distributed.
template <class Function>
decltype(auto) with_errors_of_torch(Function const& function) {
  try {
    return function();
  } catch (base::OperationError const& error) {
    char const* const kind = error.status().code() == base::StatusCode::kTimeout    ? " Timed out : "
                             : error.status().code() == base::StatusCode::kPeerLost ? " lost a peer: "
                                                                                    : " failed: ";
    TORCH_CHECK_WITH(DistBackendError, false, "headway: exchange of tables", kind, error.status().message());
  }
}

/// Exchanges over the comm::Group of a backend, with errors of torch. It asks the backend for the group at each call:
/// the group may have been shut down, or belong to the parent process.
class HeadwayGroupExchanger final : public Exchanger {
 public:
  explicit HeadwayGroupExchanger(c10::intrusive_ptr<c10d::Backend> const& backend)
      : backend_(backend), rank_(backend->getRank()), size_(backend->getSize()) {}

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }
  [[nodiscard]] bool takes_capacities() const override { return true; }
  [[nodiscard]] std::unique_ptr<Exchange> start(std::span<std::span<std::byte const> const> sends,
                                                std::span<std::span<std::byte> const> receives,
                                                std::shared_ptr<void const> memory,
                                                std::span<std::size_t> received_bytes) override {
    return with_group(
        [&](GroupExchanger& group) { return group.start(sends, receives, std::move(memory), received_bytes); });
  }
  [[nodiscard]] std::unique_ptr<Exchange> send(std::span<std::byte const> block, int peer, std::uint64_t number,
                                               std::shared_ptr<void const> memory) override {
    return with_group([&](GroupExchanger& group) { return group.send(block, peer, number, std::move(memory)); });
  }
  [[nodiscard]] std::unique_ptr<Exchange> receive(std::span<std::byte> block, int peer, std::uint64_t number,
                                                  std::shared_ptr<void const> memory) override {
    return with_group([&](GroupExchanger& group) { return group.receive(block, peer, number, std::move(memory)); });
  }
  /// See ProcessGroupExchanger::all_gather().
  [[nodiscard]] std::vector<std::string> all_gather(std::string const& text) override {
    return std::vector<std::string>(static_cast<std::size_t>(size_), text);
  }

 private:
  /// An exchange whose errors are those of torch.distributed.
  class Translated final : public Exchange {
   public:
    Translated(std::shared_ptr<comm::Group> group, std::unique_ptr<Exchange> below)
        : group_(std::move(group)), below_(std::move(below)) {}
    void wait() override {
      with_errors_of_torch([this] { below_->wait(); });
    }
    [[nodiscard]] bool is_done() override {
      return with_errors_of_torch([this] { return below_->is_done(); });
    }

   private:
    std::shared_ptr<comm::Group> group_;  ///< Declared first: it outlives the exchange.
    std::unique_ptr<Exchange> below_;
  };

  template <class Start>
  [[nodiscard]] std::unique_ptr<Exchange> with_group(Start const& start) const {
    auto const backend = backend_.lock();
    TORCH_CHECK_WITH(DistBackendError, backend != nullptr, "headway: the group of these tables was destroyed");
    auto group = dynamic_cast<comm::GroupOwner const&>(*backend).shared_group();
    GroupExchanger exchanger(*group, /*channel=*/0, &raise_pending_signals);
    auto started = with_errors_of_torch([&] { return start(exchanger); });
    return std::make_unique<Translated>(std::move(group), std::move(started));
  }

  c10::weak_intrusive_ptr<c10d::Backend> backend_;
  int rank_, size_;
};

/// The backend for tensors on the CPU, or null if there is none, as in process groups that are written in Python.
c10::intrusive_ptr<c10d::Backend> host_backend(c10d::ProcessGroup& group) {
  try {
    return group.getBackend(c10::DeviceType::CPU);
  } catch (c10::Error const&) {
    return {};
  }
}

}  // namespace

std::unique_ptr<Exchanger> make_exchanger(c10::intrusive_ptr<c10d::ProcessGroup> const& group, at::Device device) {
  if (device.is_cpu()) {
    auto const backend = host_backend(*group);
    if (dynamic_cast<comm::GroupOwner const*>(backend.get()) != nullptr) {
      return std::make_unique<HeadwayGroupExchanger>(backend);
    }
  }
  return std::make_unique<ProcessGroupExchanger>(group, device);
}

}  // namespace headway::embedding
