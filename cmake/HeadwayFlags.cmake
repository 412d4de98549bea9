# SPDX-License-Identifier: Apache-2.0

# Language level, warnings and sanitizers. Call headway_apply_flags(<target>) once for each target of this project.
find_package(Threads REQUIRED)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON) # The static library is linked into a Python module.

# Applies the flags of the project. Warnings are private to the target, so users of the library do not inherit them.
function(headway_apply_flags target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set(flags -Wall -Wextra -Wshadow -Wnon-virtual-dtor
            # GCC 12 reports false overlaps in std::string (GCC bug 105651).
            $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>
            # Functions of this project are not interposed at run time, so the compiler may inline them.
            -fno-semantic-interposition
            $<$<BOOL:${HEADWAY_WARNINGS_AS_ERRORS}>:-Werror>)
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${flags};-Wpedantic>"
                                           "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=$<JOIN:${flags},$<COMMA>>>")
endfunction()

# Applies flags to a test program: -Og, because test programs take most of the compile time and wait more than they
# compute. The linked library keeps its optimization level, except inline functions of its headers. Do not use it for
# programs whose speed matters, such as all_to_all_stress. Test programs also find the headers of tests/support, of which
# test_headers.hpp is precompiled once for all of them.
function(headway_apply_test_flags target)
  headway_apply_flags(${target})
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Og>)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/tests/support)
  get_target_property(type ${target} TYPE)
  if(TARGET headway_test_headers AND type STREQUAL EXECUTABLE)
    target_precompile_headers(${target} REUSE_FROM headway_test_headers)
  endif()
endfunction()

# Adds the files of a folder simd/ to a target: the same source, compiled for newer processors and chosen at run time.
# baseline.cpp is not among them.
function(headway_add_simd_sources target folder)
  if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    return()
  endif()
  target_sources(${target} PRIVATE ${folder}/avx2.cpp ${folder}/avx512.cpp)
  set_property(SOURCE ${folder}/avx2.cpp APPEND PROPERTY COMPILE_OPTIONS -mavx2 -mfma)
  set_property(SOURCE ${folder}/avx512.cpp APPEND PROPERTY COMPILE_OPTIONS
    -mavx2 -mfma -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512)
endfunction()

# Sanitizers apply to all targets, including GoogleTest: a partly instrumented binary reports false races. Files compile
# in a half to three quarters of the time that -O1 takes.
if(HEADWAY_SANITIZE STREQUAL "address")
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -Og)
  add_link_options(-fsanitize=address,undefined)
elseif(HEADWAY_SANITIZE STREQUAL "thread")
  # -Wno-tsan: TSan does not support fences. Each fence of this project stands next to an atomic that TSan supports.
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer -Og $<$<CXX_COMPILER_ID:GNU>:-Wno-tsan>)
  add_link_options(-fsanitize=thread)
elseif(HEADWAY_SANITIZE)
  message(FATAL_ERROR "HEADWAY_SANITIZE is '${HEADWAY_SANITIZE}'; it must be address, thread or empty")
endif()
if(HEADWAY_SANITIZE AND HEADWAY_BUILD_TORCH)
  message(FATAL_ERROR "HEADWAY_SANITIZE needs HEADWAY_BUILD_TORCH=OFF: torch itself is not instrumented")
endif()
