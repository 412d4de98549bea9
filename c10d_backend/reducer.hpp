#pragma once

#include "delegated_work.hpp"
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

  explicit Reducer(Make make);

  /// Starts `call`, after all earlier ones, as `work`. `fail_group` gets the reason if the backend cannot be made.
  /// @throws what `call` throws, unless the backend is still being made.
  void start(c10::intrusive_ptr<DelegatedWork> work, Call call, std::function<void(std::string const&)> fail_group);
  /// The backend, made now if it was not; null if `timeout` passes first. @throws c10::DistBackendError if that failed.
  c10::intrusive_ptr<c10d::Backend> backend(std::chrono::milliseconds timeout);
  /// Changes the backend's timeout if there is one.
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
  std::shared_ptr<State> state_;
};

}  // namespace headway::c10d_backend
