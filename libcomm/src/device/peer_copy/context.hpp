// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/base/cuda_driver.hpp"
#include "headway/comm/status.hpp"

#include <memory>
#include <string>

namespace headway::comm::peer_copy {

/// The device has too little free memory for the request.
class OutOfDeviceMemory : public SystemError {
 public:
  using SystemError::SystemError;
};

/// Primary context of a CUDA device, which torch and the CUDA runtime use. Retained for the lifetime of this object.
///
/// The driver is the one that the process has loaded already; libcomm links no CUDA library. So a process without
/// CUDA runs the same binary, and the tests can pass a driver of their own. Thread-safe: all members are fixed when
/// it is made.
class Context {
 public:
  /// @throws UsageError if this process has not loaded the CUDA driver or it is older than CUDA 12; SystemError.
  static std::shared_ptr<Context const> open(int ordinal);
  Context(std::shared_ptr<base::CudaDriver const> driver, int ordinal);
  Context(Context const&) = delete;
  Context& operator=(Context const&) = delete;
  ~Context();

  [[nodiscard]] base::CudaDriver const& driver() const { return *driver_; }
  [[nodiscard]] base::CudaStreamFunctions const& call() const { return driver_->streams; }
  [[nodiscard]] CUcontext handle() const { return handle_; }
  [[nodiscard]] int ordinal() const { return ordinal_; }
  /// Universally unique id of the device, equal in all processes.
  [[nodiscard]] CUuuid uuid() const;
  /// Returns if `result` is success. Otherwise
  /// @throws SystemError (OutOfDeviceMemory) naming `call`, the CUDA error, `detail` and the device.
  void check(CUresult result, char const* call, std::string const& detail = {}) const {
    if (result != CUDA_SUCCESS) [[unlikely]] {
      refuse(result, call, detail);
    }
  }

 private:
  [[noreturn]] void refuse(CUresult result, char const* call, std::string const& detail) const;

  std::shared_ptr<base::CudaDriver const> driver_;
  int ordinal_;
  CUdevice device_{};
  CUcontext handle_{};
};

/// Makes a context current on this thread for its lifetime; does nothing on failure. For destructors, which may run
/// after the driver's shutdown.
class QuietContextScope {
 public:
  explicit QuietContextScope(Context const& context) noexcept
      : context_(context), result_(context.driver().ctx_push_current(context.handle())) {}
  ~QuietContextScope() {
    CUcontext popped = nullptr;
    if (result_ == CUDA_SUCCESS) context_.driver().ctx_pop_current(&popped);
  }
  QuietContextScope(QuietContextScope const&) = delete;
  QuietContextScope& operator=(QuietContextScope const&) = delete;

 protected:
  Context const& context_;
  CUresult result_;
};

/// Makes a context current on this thread for its lifetime. @throws SystemError on failure.
class ContextScope : private QuietContextScope {
 public:
  explicit ContextScope(Context const& context) : QuietContextScope(context) {
    context.check(result_, "cuCtxPushCurrent");
  }
};

}  // namespace headway::comm::peer_copy
