// Counts and times the calls of a process to the CUDA driver that an exchange is made of. Loaded before all else
// (LD_PRELOAD), it answers dlsym(): a library that looks the driver's functions up there, as Headway does, gets them
// timed.

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

struct Call {
  char const* name;
  void* timed;
  void* driver = nullptr;
  std::atomic<std::uint64_t> count = 0;
  std::atomic<std::uint64_t> total_ns = 0;
  std::atomic<std::uint64_t> longest_ns = 0;
};

extern std::array<Call, 7> calls;

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

extern "C" void driver_calls_reset() {
  for (auto& call : calls) call.count = call.total_ns = call.longest_ns = 0;
}

/// One line a function that was called: its name, how often, nanoseconds of all calls and of the longest.
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
