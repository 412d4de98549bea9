# Language level, warnings and sanitizers. Each target of ours calls headway_apply_flags(<target>) once.
find_package(Threads REQUIRED)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON) # the static library is linked into a Python module

# Warnings are private to the target: nothing of them reaches a user of the library.
function(headway_apply_flags target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set(flags -Wall -Wextra -Wshadow -Wnon-virtual-dtor
            # GCC 12 sees overlaps in std::string that are not there (its bug 105651).
            $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>
            # Nobody replaces our functions at run time, so they may be inlined.
            -fno-semantic-interposition
            $<$<BOOL:${HEADWAY_WARNINGS_AS_ERRORS}>:-Werror>)
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${flags};-Wpedantic>"
                                           "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=$<JOIN:${flags},$<COMMA>>>")
endfunction()

# For programs of tests, on which the compiler spends most of its time: they wait more than they compute. The library in
# them keeps its level, but for inline functions of its headers. Not for programs whose speed counts, as ring_stress.
function(headway_apply_test_flags target)
  headway_apply_flags(${target})
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Og>)
endfunction()

# Sanitizers apply to all targets, GoogleTest included: a mixed binary reports races that are not there.
if(HEADWAY_SANITIZE STREQUAL "address")
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -O1)
  add_link_options(-fsanitize=address,undefined)
elseif(HEADWAY_SANITIZE STREQUAL "thread")
  # The fences that it does not know stand beside atomics that it does know.
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer -O1 $<$<CXX_COMPILER_ID:GNU>:-Wno-tsan>)
  add_link_options(-fsanitize=thread)
elseif(HEADWAY_SANITIZE)
  message(FATAL_ERROR "HEADWAY_SANITIZE is '${HEADWAY_SANITIZE}'; it must be address, thread or empty")
endif()
if(HEADWAY_SANITIZE AND HEADWAY_BUILD_TORCH)
  message(FATAL_ERROR "HEADWAY_SANITIZE needs HEADWAY_BUILD_TORCH=OFF: torch itself is not instrumented")
endif()
