#pragma once

#include "delegated_work.hpp"
#include "reduction_watch.hpp"
#include "torch_headers.hpp"

#include <chrono>
#include <functional>
#include <memory>
#include <string>

namespace headway::c10d_backend {

/// Hands reductions to another backend, which is made in the background when the first one comes: many groups never
/// reduce, and making it needs all ranks, for which the start of an operation must not wait.
class Reducer final {
 public:
  using Make = std::function<c10::intrusive_ptr<c10d::Backend>()>;
  using Call = std::function<c10::intrusive_ptr<c10d::Work>(c10d::Backend&)>;

  /// `group`: its failure fails what is pending.
  Reducer(Make make, std::weak_ptr<GroupHandle> group);
  Reducer(Reducer const&) = delete;
  Reducer& operator=(Reducer const&) = delete;
  ~Reducer();

  /// Starts `call`, after all earlier ones, as `work`. `fail_group` gets the reason if the backend cannot be made.
  /// @throws what `call` throws, unless the backend is still being made; c10::DistBackendError if the thread that makes
  /// it cannot be started: the next call tries again.
  void start(c10::intrusive_ptr<DelegatedWork> const& work, Call call,
             std::function<void(std::string const&)> fail_group);
  /// The backend, made now if it was not; null if `timeout` passes first. @throws c10::DistBackendError if that failed.
  c10::intrusive_ptr<c10d::Backend> backend(std::chrono::milliseconds timeout);
  /// Changes the backend's timeout, now or as soon as the backend is made.
  void set_timeout(std::chrono::milliseconds timeout);
  /// Ends the backend if there is one: its pending work fails.
  void abort();
  /// Leaves the backend if there is one, together with the other ranks.
  void shutdown();
  /// Ends the backend and its threads with the program.
  void end_with_program();
  /// Leaves everything as it is, for a forked child where the backend's threads do not exist.
  void leak();

 private:
  struct State;

  void start_or_queue(c10::intrusive_ptr<DelegatedWork> const& work, Call call,
                      std::function<void(std::string const&)> fail_group);

  std::shared_ptr<State> state_;
  std::shared_ptr<ReductionWatch> watch_;
};

}  // namespace headway::c10d_backend
