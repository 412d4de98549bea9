#pragma once

#include "engines/cuda_driver.hpp"
#include "headway/comm/status.hpp"

#include <memory>
#include <string>

namespace headway::comm::nvlink {

/// A device has no memory left for what was asked of it.
class OutOfDeviceMemory : public SystemError {
 public:
  using SystemError::SystemError;
};

/// The primary context of a CUDA device, the one that torch and CUDA's runtime use; alive as long as this is.
class Context {
 public:
  /// @throws UsageError: this process has not loaded CUDA's driver, or that is older than CUDA 12; SystemError.
  static std::shared_ptr<Context const> open(int ordinal);
  Context(std::shared_ptr<CudaDriver const> driver, int ordinal);
  Context(Context const&) = delete;
  Context& operator=(Context const&) = delete;
  ~Context();

  [[nodiscard]] CudaDriver const& driver() const { return *driver_; }
  [[nodiscard]] CudaStreamFunctions const& call() const { return driver_->streams; }
  [[nodiscard]] CUcontext handle() const { return handle_; }
  [[nodiscard]] int ordinal() const { return ordinal_; }
  /// The device's own name, alike in all processes.
  [[nodiscard]] CUuuid uuid() const;
  /// @throws SystemError (OutOfDeviceMemory) that names `call`, CUDA's error, `detail` and the device, unless `result`
  /// is success.
  void check(CUresult result, char const* call, std::string const& detail = {}) const {
    if (result != CUDA_SUCCESS) [[unlikely]] {
      refuse(result, call, detail);
    }
  }

 private:
  [[noreturn]] void refuse(CUresult result, char const* call, std::string const& detail) const;

  std::shared_ptr<CudaDriver const> driver_;
  int ordinal_;
  CUdevice device_{};
  CUcontext handle_{};
};

/// Makes a context this thread's while it lives, if it can: for destructors, which may come after CUDA's end.
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

/// The same. @throws SystemError if it cannot.
class ContextScope : private QuietContextScope {
 public:
  explicit ContextScope(Context const& context) : QuietContextScope(context) {
    context.check(result_, "cuCtxPushCurrent");
  }
};

}  // namespace headway::comm::nvlink
