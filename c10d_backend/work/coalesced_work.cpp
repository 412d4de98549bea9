// SPDX-License-Identifier: Apache-2.0

// One work for several: it is complete when all are, and fails with the first failure in the order of the calls.
//
// PyTorch's batch_isend_irecv() and its coalesced collectives start many operations between startCoalescing() and
// endCoalescing(). Here these start at once, each with a work of its own; only the waiting is combined.

#include "work/coalesced_work.hpp"

#include <headway/comm/endpoint.hpp>

#include <algorithm>

namespace headway::c10d_backend {

CoalescedWork::CoalescedWork(int rank, std::vector<c10::intrusive_ptr<c10d::Work>> works)
    : Work(rank, c10d::OpType::COALESCED), works_(std::move(works)) {}

bool CoalescedWork::isCompleted() {
  return std::all_of(works_.begin(), works_.end(), [](auto const& work) { return work->isCompleted(); });
}

bool CoalescedWork::isSuccess() const {
  return std::all_of(works_.begin(), works_.end(), [](auto const& work) { return work->isSuccess(); });
}

std::exception_ptr CoalescedWork::exception() const {
  for (auto const& work : works_) {
    if (auto error = work->exception()) return error;
  }
  return nullptr;
}

std::vector<at::Tensor> CoalescedWork::result() {
  std::vector<at::Tensor> results;
  for (auto const& work : works_) {
    auto const part = work->result();
    results.insert(results.end(), part.begin(), part.end());
  }
  return results;
}

void CoalescedWork::synchronize() {
  for (auto const& work : works_) work->synchronize();
}

bool CoalescedWork::wait(std::chrono::milliseconds timeout) {
  auto const deadline = comm::deadline_after(timeout);
  for (auto const& work : works_) {
    if (timeout == kNoTimeout) {
      work->wait();
      continue;
    }
    auto const left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - comm::Clock::now());
    work->wait(std::max(left, std::chrono::milliseconds(1)));  // Zero would mean no limit.
  }
  return true;
}

void CoalescedWork::abort() {
  for (auto const& work : works_) work->abort();
}

c10::intrusive_ptr<c10::ivalue::Future> CoalescedWork::getFuture() {
  auto const tensors = c10::ListType::create(c10::TensorType::get());
  c10::List<c10::intrusive_ptr<c10::ivalue::Future>> parts(c10::FutureType::create(tensors));
  for (auto const& work : works_) parts.push_back(work->getFuture());
  return c10::collectAll(parts)->then(
      [](c10::ivalue::Future& all) -> c10::IValue {
        std::vector<at::Tensor> results;
        for (c10::IValue const& part : all.value().toListRef()) {
          auto const value = part.toFuture()->value();  // Throws the error of the failed part.
          for (auto const& tensor : value.toTensorVector()) results.push_back(tensor);
        }
        return results;
      },
      tensors);
}

}  // namespace headway::c10d_backend
