// SPDX-License-Identifier: Apache-2.0

// Counts and times the calls of an exchange to the CUDA driver.
//
// Idea: loaded by LD_PRELOAD, this library replaces dlsym(). A library that looks up a driver function by dlsym(), as
// Headway does, gets a wrapper instead, which counts and times each call and then calls the driver.
//
// Threads: the counters are atomic, so calls may come from any thread. reset() and report() are not synchronised with
// running calls.

#include <cuda.h>
#include <dlfcn.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string_view>

namespace {

/// One wrapped driver function and its counters.
struct Call {
  char const* name;
  void* timed;             ///< The wrapper, which dlsym() returns.
  void* driver = nullptr;  ///< The driver's function; set by dlsym().
  std::atomic<std::uint64_t> count = 0;
  std::atomic<std::uint64_t> total_ns = 0;
  std::atomic<std::uint64_t> longest_ns = 0;
};

/// The measured functions. Defined below, since the entries name their own wrappers.
extern std::array<Call, 7> calls;

/// Wrapper of calls[Index]. It has the signature of the driver's function.
template <std::size_t Index, typename Function>
struct Timed;

template <std::size_t Index, typename... Arguments>
struct Timed<Index, CUresult(Arguments...)> {
  static CUresult call(Arguments... arguments) {
    using Clock = std::chrono::steady_clock;
    Call& own = calls[Index];
    auto const start = Clock::now();
    CUresult const result = reinterpret_cast<CUresult (*)(Arguments...)>(own.driver)(arguments...);
    auto const ns = static_cast<std::uint64_t>((Clock::now() - start).count());
    ++own.count;
    own.total_ns += ns;
    for (auto longest = own.longest_ns.load(); ns > longest && !own.longest_ns.compare_exchange_weak(longest, ns);) {
    }
    return result;
  }
};

template <std::size_t Index, typename Function>
void* timed() {
  return reinterpret_cast<void*>(&Timed<Index, Function>::call);
}

std::array<Call, 7> calls{{
    {"cuMemcpyAsync", timed<0, decltype(cuMemcpyAsync)>()},
    {"cuMemcpyBatchAsync_v2", timed<1, decltype(cuMemcpyBatchAsync)>()},
    {"cuStreamBatchMemOp_v2", timed<2, decltype(cuStreamBatchMemOp)>()},
    {"cuStreamWaitEvent", timed<3, decltype(cuStreamWaitEvent)>()},
    {"cuEventRecord", timed<4, decltype(cuEventRecord)>()},
    {"cuEventQuery", timed<5, decltype(cuEventQuery)>()},
    {"cuPointerGetAttributes", timed<6, decltype(cuPointerGetAttributes)>()},
}};

using Find = void* (*)(void*, char const*);

}  // namespace

/// Replaces the C library's dlsym(), which it finds by dlvsym(). Returns the wrapper for functions in `calls`.
extern "C" void* dlsym(void* handle, char const* name) {
  static auto const find = reinterpret_cast<Find>(::dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5"));
  void* const found = find(handle, name);
  if (found == nullptr) return found;
  for (auto& call : calls) {
    if (std::string_view(call.name) != name) continue;
    call.driver = found;
    return call.timed;
  }
  return found;
}

/// Sets all counters to zero.
extern "C" void driver_calls_reset() {
  for (auto& call : calls) call.count = call.total_ns = call.longest_ns = 0;
}

/// Writes one line per function that was called: name, number of calls, total and longest time in ns. Stops when
/// `num_bytes` are full, so the last line may be cut. The text ends with a zero byte.
extern "C" void driver_calls_report(char* text, std::size_t num_bytes) {
  if (num_bytes == 0) return;
  *text = '\0';
  for (auto const& call : calls) {
    if (call.count == 0) continue;
    int const length = std::snprintf(text, num_bytes, "%s %ju %ju %ju\n", call.name, std::uintmax_t{call.count},
                                     std::uintmax_t{call.total_ns}, std::uintmax_t{call.longest_ns});
    if (length < 0 || static_cast<std::size_t>(length) >= num_bytes) return;
    text += length;
    num_bytes -= static_cast<std::size_t>(length);
  }
}
