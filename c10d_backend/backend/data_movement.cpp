// SPDX-License-Identifier: Apache-2.0

// Collectives that only move data. Each one lists its blocks and starts one operation of the group.
//
// Idea: libcomm knows bytes and ranks, not tensors. A collective here checks its tensors, turns them into one block
// per rank, and passes the blocks on; the group moves them straight between the tensors' memory. A tensor that is not
// plain memory is replaced by a contiguous temporary (tensors/work_tensors.hpp).
//
// Example: all_to_all_single of a (6, 4) float32 tensor over 3 ranks with input_splits = [1, 3, 2]. A row has 16
// bytes, so the blocks are bytes [0, 16) for rank 0, [16, 64) for rank 1 and [64, 96) for rank 2. No row is copied
// before it is sent.
//
// Invariants:
// - All checks that need no other rank come before the operation starts. After that a failure of this rank would leave
//   its peers waiting.
// - A received block shares no memory with any other block. Peers write at any time, so the result would be random
//   otherwise. The block that a rank sends to itself may equal its destination, as for an all_gather in place.
// - Sizes and types of the ranks are compared by the group, message by message; a mismatch fails the operation.
// Complexity: O(ranks) per call on the host, plus O(n log n) if the n blocks may overlap (tensors/memory_overlap.cpp).

#include "backend/headway_backend.hpp"
#include "tensors/memory_overlap.hpp"

#include <c10/util/SmallVector.h>

namespace headway::c10d_backend {

namespace {

using c10d::OpType;
/// Blocks of one operation, by rank.
using Sources = c10::SmallVector<std::span<std::byte const>, 16>;
using Destinations = c10::SmallVector<std::span<std::byte>, 16>;

/// The only tensor of a list: c10d passes lists where one tensor is meant.
at::Tensor& only(std::vector<at::Tensor>& tensors, char const* what) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "headway: ", what, " takes one tensor, not ", tensors.size());
  return tensors[0];
}

void expects_one_per_rank(std::size_t count, int size, char const* what) {
  TORCH_CHECK_VALUE(count == static_cast<std::size_t>(size), "headway: ", what, " needs one tensor for each of the ",
                    size, " ranks, not ", count);
}

void expects_same_type(at::Tensor const& input, at::Tensor const& output, char const* what) {
  TORCH_CHECK_TYPE(input.scalar_type() == output.scalar_type(), "headway: ", what, " of ", input.scalar_type(), " and ",
                   output.scalar_type(), ": all inputs and outputs must be of one type");
}

void expects_same_type(at::Tensor const& tensor, std::vector<at::Tensor> const& list, char const* what) {
  for (auto const& each : list) expects_same_type(tensor, each, what);
}

/// Bytes of `rows` rows of `tensor`, starting with row `first`. A tensor without rows has rows of 0 bytes here,
/// whatever its other dimensions.
template <typename Byte>
std::span<Byte> rows_of(std::span<Byte> bytes, at::Tensor const& tensor, std::int64_t first, std::int64_t rows) {
  auto const row_bytes = tensor.size(0) == 0 ? 0 : bytes.size() / static_cast<std::size_t>(tensor.size(0));
  return bytes.subspan(static_cast<std::size_t>(first) * row_bytes, static_cast<std::size_t>(rows) * row_bytes);
}

/// Cuts `bytes` of `tensor` along its first dimension; into equal parts if `splits` is empty.
template <typename Byte>
c10::SmallVector<std::span<Byte>, 16> cut(std::span<Byte> bytes, at::Tensor const& tensor,
                                          std::vector<std::int64_t> const& splits, int size) {
  c10d::checkSplitSizes(splits, tensor, size);
  c10::SmallVector<std::span<Byte>, 16> blocks;
  std::int64_t first = 0;
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(size); ++rank) {
    std::int64_t const rows = splits.empty() ? tensor.size(0) / size : splits[rank];
    TORCH_CHECK_VALUE(rows >= 0, "headway: the split for rank ", rank, " is negative: ", rows);
    // The sum that checkSplitSizes() compares can overflow, so each split is checked too.
    TORCH_CHECK_VALUE(rows <= tensor.size(0) - first, "headway: the split for rank ", rank, " is ", rows, ", and only ",
                      tensor.size(0) - first, " of ", tensor.size(0), " rows are left");
    blocks.push_back(rows_of(bytes, tensor, first, rows));
    first += rows;
  }
  return blocks;
}

/// Cuts a tensor of any shape into `size` equal parts, in memory order.
Destinations cut_evenly(std::span<std::byte> bytes, int size) {
  Destinations blocks;
  auto const block_bytes = bytes.size() / static_cast<std::size_t>(size);
  for (int rank = 0; rank < size; ++rank) {
    blocks.push_back(bytes.subspan(static_cast<std::size_t>(rank) * block_bytes, block_bytes));
  }
  return blocks;
}

/// One block per tensor of a list, and below the same for outputs.
Sources sources_of(WorkTensors& tensors, std::vector<at::Tensor> const& list) {
  Sources blocks;
  for (auto const& tensor : list) blocks.push_back(tensors.source(tensor));
  return blocks;
}

Destinations destinations_of(WorkTensors& tensors, std::vector<at::Tensor> const& list) {
  Destinations blocks;
  for (auto const& tensor : list) blocks.push_back(tensors.destination(tensor));
  return blocks;
}

/// Throws if a received block of an exchange shares memory with another block.
void expects_disjoint_exchange(std::string_view op_name, Sources const& sends, Destinations const& receives,
                               int own_rank) {
  BlockMap blocks;
  for (int rank = 0; rank < static_cast<int>(receives.size()); ++rank) {
    auto const& send = sends[static_cast<std::size_t>(rank)];
    auto const& receive = receives[static_cast<std::size_t>(rank)];
    blocks.write(receive, rank);
    rank == own_rank ? blocks.read_own(send, receive, rank) : blocks.read(send, rank);
  }
  blocks.expect_disjoint(op_name);
}

/// Throws if the input of a gather overlaps other ranks' parts of an output, or if outputs overlap.
void expects_disjoint_gathering(std::string_view op_name, Sources const& sends, std::span<Destinations const> receives,
                                int own_rank) {
  BlockMap blocks;
  for (std::size_t i = 0; i < receives.size(); ++i) {
    for (int rank = 0; rank < static_cast<int>(receives[i].size()); ++rank) {
      blocks.write(receives[i][static_cast<std::size_t>(rank)], rank);
    }
    blocks.read_own(sends[i], receives[i][static_cast<std::size_t>(own_rank)]);
  }
  blocks.expect_disjoint(op_name);
}

/// Throws if the output of a scatter overlaps blocks for other ranks.
void expects_disjoint_scattering(std::string_view op_name, Sources const& sends, std::span<std::byte const> output,
                                 int own_rank) {
  BlockMap blocks;
  blocks.write(output);
  for (int rank = 0; rank < static_cast<int>(sends.size()); ++rank) {
    auto const& send = sends[static_cast<std::size_t>(rank)];
    rank == own_rank ? blocks.read_own(send, output, rank) : blocks.read(send, rank);
  }
  blocks.expect_disjoint(op_name);
}

/// Starts one all_gather per input, on a comm::Group or a DeviceGroupAdaptor.
template <typename AnyGroup>
auto all_gather_each(AnyGroup& group, Sources const& blocks, std::vector<Destinations> const& receives,
                     std::vector<at::Tensor> const& inputs) {
  std::vector<decltype(group.all_gather(blocks[0], receives[0], 0))> operations;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    operations.push_back(group.all_gather(blocks[i], receives[i], data_type_of(inputs[i])));
  }
  return operations;
}

/// Number by which the group pairs a send with a receive: c10d's message tag.
/// @throws ValueError if the tag is negative.
std::uint64_t match_of(int tag) {
  TORCH_CHECK_VALUE(tag >= 0, "headway: the tag of a message must be at least 0, not ", tag);
  return static_cast<std::uint64_t>(tag);
}

}  // namespace

c10::intrusive_ptr<c10d::Work> HeadwayBackend::all_to_all_on_channel(at::Tensor const& output, at::Tensor const& input,
                                                                     std::vector<std::int64_t> const& output_splits,
                                                                     std::vector<std::int64_t> const& input_splits,
                                                                     int channel, std::chrono::milliseconds timeout) {
  expects_same_type(input, output, "all_to_all_single");
  WorkTensors tensors;
  auto const sends = cut(tensors.source(input), input, input_splits, getSize());
  auto const receives = cut(tensors.destination(output), output, output_splits, getSize());
  tensors.results = {output};
  expects_disjoint_exchange("all_to_all_single", sends, receives, getRank());
  tensors.expect_disjoint_results("all_to_all_single");
  auto const type = data_type_of(input);
  return launch(
      op_info(OpType::ALLTOALL_BASE, "headway:all_to_all", timeout), std::move(tensors), {input}, [&](auto& group) {
        return std::vector{
            group.all_to_all_v({.sends = sends, .receives = receives, .data_type = type, .channel = channel})};
      });
}

// Slots are parts of the receive memory that a CUDA exchange reads and writes in place (headway.slots, slot_ring.cpp).
c10::intrusive_ptr<DeviceWork> HeadwayBackend::launch_in_slots(
    WorkTensors tensors, std::vector<at::Tensor> const& inputs, std::chrono::milliseconds timeout,
    std::function<comm::DeviceOperationPtr(comm::DeviceCall const&)> const& start) {
  auto const op = this->op_info(OpType::ALLTOALL_BASE, "headway:all_to_all", timeout);
  auto handle = this->handle();
  handle->release_completed();
  auto const device = *tensors.device();
  auto const stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  auto operation =
      translate_errors(op.name, [&] { return start({.stream = stream.native_handle(), .timeout = op.timeout}); });
  auto work = c10::make_intrusive<DeviceWork>(std::move(handle), op, getRank(), std::move(tensors),
                                              std::vector{std::move(operation)}, inputs, stream);
  record_if_coalescing(work);
  return work;
}

c10::intrusive_ptr<c10d::Work> HeadwayBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                             std::vector<std::int64_t>& output_splits,
                                                             std::vector<std::int64_t>& input_splits,
                                                             c10d::AllToAllOptions const& options) {
  return all_to_all_on_channel(output, input, output_splits, input_splits, 0, options.timeout);
}

c10::intrusive_ptr<c10d::Work> HeadwayBackend::alltoall(std::vector<at::Tensor>& outputs,
                                                        std::vector<at::Tensor>& inputs,
                                                        c10d::AllToAllOptions const& options) {
  expects_one_per_rank(inputs.size(), getSize(), "the input of all_to_all");
  expects_one_per_rank(outputs.size(), getSize(), "the output of all_to_all");
  expects_same_type(inputs[0], inputs, "all_to_all");
  expects_same_type(inputs[0], outputs, "all_to_all");
  WorkTensors tensors;
  auto const sends = sources_of(tensors, inputs);
  auto const receives = destinations_of(tensors, outputs);
  tensors.results = outputs;
  expects_disjoint_exchange("all_to_all", sends, receives, getRank());
  tensors.expect_disjoint_results("all_to_all");
  auto const type = data_type_of(inputs[0]);
  return launch(
      op_info(OpType::ALLTOALL, "headway:all_to_all", options.timeout), std::move(tensors), inputs, [&](auto& group) {
        return std::vector{group.all_to_all_v({.sends = sends, .receives = receives, .data_type = type, .channel = 0})};
      });
}

c10::intrusive_ptr<c10d::Work> HeadwayBackend::broadcast(std::vector<at::Tensor>& list,
                                                         c10d::BroadcastOptions const& options) {
  auto& tensor = only(list, "broadcast");
  int const root = static_cast<int>(options.rootRank);
  WorkTensors tensors;
  // The root's block is only read, so its temporary needs no write-back.
  auto const plain = root == getRank() ? tensors.plain_source(tensor) : tensors.plain_destination(tensor);
  std::span const block(static_cast<std::byte*>(plain.data_ptr()), plain.nbytes());
  tensors.results = {tensor};
  tensors.expect_disjoint_results("broadcast");
  auto const type = data_type_of(tensor);
  return launch(op_info(OpType::BROADCAST, "headway:broadcast", options.timeout), std::move(tensors), list,
                [&](auto& group) { return std::vector{group.broadcast(block, root, type)}; });
}

c10::intrusive_ptr<c10d::Work> HeadwayBackend::allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                                         std::vector<at::Tensor>& inputs,
                                                         c10d::AllgatherOptions const& options) {
  auto& input = only(inputs, "all_gather");
  TORCH_CHECK_VALUE(outputs.size() == 1, "headway: all_gather takes one list of outputs, not ", outputs.size());
  expects_one_per_rank(outputs[0].size(), getSize(), "the output of all_gather");
  expects_same_type(input, outputs[0], "all_gather");
  WorkTensors tensors;
  auto const block = tensors.source(input);
  auto const receives = destinations_of(tensors, outputs[0]);
  tensors.results = outputs[0];
  expects_disjoint_gathering("all_gather", {block}, std::span(&receives, 1), getRank());
  tensors.expect_disjoint_results("all_gather");
  auto const type = data_type_of(input);
  return launch(op_info(OpType::ALLGATHER, "headway:all_gather", options.timeout), std::move(tensors), inputs,
                [&](auto& group) { return std::vector{group.all_gather(block, receives, type)}; });
}

c10::intrusive_ptr<c10d::Work> HeadwayBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                               c10d::AllgatherOptions const& options) {
  std::vector<at::Tensor> outputs{output};
  std::vector<at::Tensor> inputs{input};
  return allgather_into_tensor_coalesced(outputs, inputs, options);
}

c10::intrusive_ptr<c10d::Work> HeadwayBackend::allgather_into_tensor_coalesced(std::vector<at::Tensor>& outputs,
                                                                               std::vector<at::Tensor>& inputs,
                                                                               c10d::AllgatherOptions const& options) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "headway: all_gather_into_tensor of ", inputs.size(),
                    " inputs needs as many outputs, not ", outputs.size());
  WorkTensors tensors;
  std::vector<Destinations> receives;
  Sources blocks;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    expects_same_type(inputs[i], outputs[i], "all_gather_into_tensor");
    TORCH_CHECK_VALUE(outputs[i].numel() == inputs[i].numel() * getSize(), "headway: all_gather_into_tensor of ",
                      inputs[i].numel(), " elements on ", getSize(), " ranks needs an output of ",
                      inputs[i].numel() * getSize(), " elements, not ", outputs[i].numel());
    blocks.push_back(tensors.source(inputs[i]));
    receives.push_back(cut_evenly(tensors.destination(outputs[i]), getSize()));
  }
  tensors.results = outputs;
  expects_disjoint_gathering("all_gather_into_tensor", blocks, receives, getRank());
  tensors.expect_disjoint_results("all_gather_into_tensor");
  return launch(op_info(OpType::_ALLGATHER_BASE, "headway:all_gather", options.timeout), std::move(tensors), inputs,
                [&](auto& group) { return all_gather_each(group, blocks, receives, inputs); });
}

c10::intrusive_ptr<c10d::Work> HeadwayBackend::allgather_coalesced(std::vector<std::vector<at::Tensor>>& outputs,
                                                                   std::vector<at::Tensor>& inputs,
                                                                   c10d::AllgatherOptions const& options) {
  expects_one_per_rank(outputs.size(), getSize(), "the output of all_gather_coalesced, a list of lists,");
  WorkTensors tensors;
  auto const blocks = sources_of(tensors, inputs);
  std::vector<Destinations> receives(inputs.size());
  for (auto const& list : outputs) {
    TORCH_CHECK_VALUE(list.size() == inputs.size(), "headway: all_gather_coalesced of ", inputs.size(),
                      " inputs needs as many outputs for each rank, not ", list.size());
    for (std::size_t i = 0; i < list.size(); ++i) {
      expects_same_type(inputs[i], list[i], "all_gather_coalesced");
      TORCH_CHECK_VALUE(inputs[i].numel() == list[i].numel(), "headway: all_gather_coalesced of ", inputs[i].numel(),
                        " elements needs outputs of as many, not ", list[i].numel());
      receives[i].push_back(tensors.destination(list[i]));
    }
    tensors.results.insert(tensors.results.end(), list.begin(), list.end());
    tensors.result_lengths.push_back(list.size());
  }
  expects_disjoint_gathering("all_gather_coalesced", blocks, receives, getRank());
  tensors.expect_disjoint_results("all_gather_coalesced");
  return launch(op_info(OpType::ALLGATHER_COALESCED, "headway:all_gather", options.timeout), std::move(tensors), inputs,
                [&](auto& group) { return all_gather_each(group, blocks, receives, inputs); });
}

c10::intrusive_ptr<c10d::Work> HeadwayBackend::gather(std::vector<std::vector<at::Tensor>>& outputs,
                                                      std::vector<at::Tensor>& inputs,
                                                      c10d::GatherOptions const& options) {
  auto& input = only(inputs, "gather");
  int const root = static_cast<int>(options.rootRank);
  WorkTensors tensors;
  auto const block = tensors.source(input);
  Destinations receives;
  if (root == getRank()) {
    TORCH_CHECK_VALUE(outputs.size() == 1, "headway: gather takes one list of outputs at the root, not ",
                      outputs.size());
    expects_one_per_rank(outputs[0].size(), getSize(), "the output of gather");
    expects_same_type(input, outputs[0], "gather");
    receives = destinations_of(tensors, outputs[0]);
    tensors.results = outputs[0];
    expects_disjoint_gathering("gather", {block}, std::span(&receives, 1), root);
    tensors.expect_disjoint_results("gather");
  } else {
    TORCH_CHECK_VALUE(outputs.empty(), "headway: gather takes outputs at the root only");
  }
  auto const type = data_type_of(input);
  return launch(op_info(OpType::GATHER, "headway:gather", options.timeout), std::move(tensors), inputs,
                [&](auto& group) { return std::vector{group.gather(block, receives, root, type)}; });
}

#if HEADWAY_TORCH_HAS_ABORT_HOOKS  // The torch that brought these hooks brought gather_single() too.
c10::intrusive_ptr<c10d::Work> HeadwayBackend::gather_single(at::Tensor& output, at::Tensor& input,
                                                             c10d::GatherOptions const& options) {
  int const root = static_cast<int>(options.rootRank);
  WorkTensors tensors;
  auto const block = tensors.source(input);
  Destinations receives;
  if (root == getRank()) {
    TORCH_CHECK_VALUE(output.numel() == input.numel() * getSize(), "headway: gather_single of ", input.numel(),
                      " elements on ", getSize(), " ranks needs an output of ", input.numel() * getSize(),
                      " elements at the root, not ", output.numel());
    expects_same_type(input, output, "gather_single");
    receives = cut_evenly(tensors.destination(output), getSize());
    tensors.results = {output};
    expects_disjoint_gathering("gather_single", {block}, std::span(&receives, 1), root);
    tensors.expect_disjoint_results("gather_single");
  }
  auto const type = data_type_of(input);
  return launch(op_info(OpType::GATHER, "headway:gather", options.timeout), std::move(tensors), {input},
                [&](auto& group) { return std::vector{group.gather(block, receives, root, type)}; });
}
#endif

c10::intrusive_ptr<c10d::Work> HeadwayBackend::scatter(std::vector<at::Tensor>& outputs,
                                                       std::vector<std::vector<at::Tensor>>& inputs,
                                                       c10d::ScatterOptions const& options) {
  auto& output = only(outputs, "scatter");
  int const root = static_cast<int>(options.rootRank);
  WorkTensors tensors;
  auto const block = tensors.destination(output);
  Sources sends;
  if (root == getRank()) {
    TORCH_CHECK_VALUE(inputs.size() == 1, "headway: scatter takes one list of inputs at the root, not ", inputs.size());
    expects_one_per_rank(inputs[0].size(), getSize(), "the input of scatter");
    expects_same_type(output, inputs[0], "scatter");
    sends = sources_of(tensors, inputs[0]);
    expects_disjoint_scattering("scatter", sends, block, root);
  } else {
    TORCH_CHECK_VALUE(inputs.empty(), "headway: scatter takes inputs at the root only");
  }
  tensors.results = {output};
  tensors.expect_disjoint_results("scatter");
  auto const type = data_type_of(output);
  return launch(op_info(OpType::SCATTER, "headway:scatter", options.timeout), std::move(tensors),
                inputs.empty() ? std::vector<at::Tensor>() : inputs[0],
                [&](auto& group) { return std::vector{group.scatter(sends, block, root, type)}; });
}

c10::intrusive_ptr<c10d::Work> HeadwayBackend::send(std::vector<at::Tensor>& list, int peer, int tag) {
  auto const match = match_of(tag);
  auto& tensor = only(list, "send");
  WorkTensors tensors;
  auto const block = tensors.source(tensor);
  auto const type = data_type_of(tensor);
  return launch(op_info(OpType::SEND, "headway:send", c10d::kUnsetTimeout), std::move(tensors), list,
                [&](auto& group) { return std::vector{group.send(block, peer, match, type)}; });
}

c10::intrusive_ptr<c10d::Work> HeadwayBackend::recv(std::vector<at::Tensor>& list, int peer, int tag) {
  auto const match = match_of(tag);
  auto& tensor = only(list, "recv");
  WorkTensors tensors;
  auto const block = tensors.destination(tensor);
  tensors.results = {tensor};
  tensors.expect_disjoint_results("recv");
  auto const type = data_type_of(tensor);
  return launch(op_info(OpType::RECV, "headway:recv", c10d::kUnsetTimeout), std::move(tensors), list,
                [&](auto& group) { return std::vector{group.receive(block, peer, match, type)}; });
}

c10::intrusive_ptr<c10d::Work> HeadwayBackend::recvAnysource(std::vector<at::Tensor>& list, int tag) {
  auto const match = match_of(tag);
  auto& tensor = only(list, "recv");
  WorkTensors tensors;
  auto const block = tensors.destination(tensor);
  tensors.results = {tensor};
  tensors.expect_disjoint_results("recv");
  auto const type = data_type_of(tensor);
  return launch(op_info(OpType::RECVANYSOURCE, "headway:recvAnySource", c10d::kUnsetTimeout), std::move(tensors), list,
                [&](auto& group) { return std::vector{group.receive_any(block, match, type)}; });
}

c10::intrusive_ptr<c10d::Work> HeadwayBackend::barrier(c10d::BarrierOptions const& options) {
  return launch_on_host(op_info(OpType::BARRIER, "headway:barrier", options.timeout), {}, {},
                        [](comm::Group& group) { return std::vector{group.barrier()}; });
}

}  // namespace headway::c10d_backend
