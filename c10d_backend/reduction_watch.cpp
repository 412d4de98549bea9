#include "reduction_watch.hpp"

#include "delegated_work.hpp"
#include "detached_thread.hpp"

#include <chrono>
#include <utility>

namespace headway::c10d_backend {

namespace {

constexpr std::chrono::milliseconds kLookTime{100};

}  // namespace

ReductionWatch::Entry ReductionWatch::enter(c10::intrusive_ptr<DelegatedWork> work) {
  std::lock_guard const lock(mutex_);
  if (!has_thread_) {
    start_detached("headway_watch", [self = shared_from_this()] { self->run(); });
    has_thread_ = true;
  }
  std::uint64_t const number = next_number_++;
  works_.emplace(number, std::move(work));
  if (works_.size() == 1) changed_.notify_one();
  return {nullptr, [self = shared_from_this(), number](void*) { self->leave(number); }};
}

void ReductionWatch::leave(std::uint64_t number) {
  Works::node_type left;
  std::lock_guard const lock(mutex_);
  left = works_.extract(number);
}

void ReductionWatch::close() {
  Works left;
  {
    std::lock_guard const lock(mutex_);
    is_closed_ = true;
    left.swap(works_);
  }
  changed_.notify_one();
}

void ReductionWatch::run() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return is_closed_ || !works_.empty(); });
      changed_.wait_for(lock, kLookTime, [this] { return is_closed_; });
      if (is_closed_) return;
    }
    look();
  }
}

void ReductionWatch::look() {
  auto const group = group_.lock();
  if (!group || group->group().health().ok()) return;
  Works pending;
  {
    std::lock_guard const lock(mutex_);
    pending = works_;
  }
  for (auto const& [number, work] : pending) work->fail_with(*group);
}

}  // namespace headway::c10d_backend
