// SPDX-License-Identifier: Apache-2.0

// Larger stacks for threads of libraries.
//
// The HTTP server of prometheus-cpp asks for stacks of 100 KiB. glibc puts the thread-local storage of all libraries
// into the stack of a thread, and that of torch's libraries is larger, so pthread_create() fails with EINVAL. The
// dynamic linker takes this function for every library of the program.

#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <cstddef>

extern "C" int pthread_attr_setstacksize(pthread_attr_t* attributes, std::size_t size_bytes) noexcept {
  using Function = int (*)(pthread_attr_t*, std::size_t);
  static auto const original = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "pthread_attr_setstacksize"));
  return original(attributes, std::max(size_bytes, std::size_t{1} << 20));
}
