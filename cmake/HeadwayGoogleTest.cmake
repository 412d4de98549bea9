# SPDX-License-Identifier: Apache-2.0

# Defines the targets GTest::gtest, GTest::gtest_main and GTest::gmock, or prints a warning if GoogleTest is missing.
# Sanitizer and cross builds need GoogleTest from source. Debian's libgtest-dev has both binaries and source.
set(HEADWAY_GTEST_SOURCE /usr/src/googletest CACHE PATH "GoogleTest source for sanitizer and cross builds")

if(NOT HEADWAY_SANITIZE AND NOT CMAKE_CROSSCOMPILING)
  find_package(GTest CONFIG QUIET)
endif()
if(NOT TARGET GTest::gtest AND EXISTS ${HEADWAY_GTEST_SOURCE}/CMakeLists.txt)
  set(INSTALL_GTEST OFF CACHE BOOL "" FORCE)
  set(CMAKE_POLICY_VERSION_MINIMUM 3.5) # Debian 12's copy requires too old a CMake.
  set(CMAKE_WARN_DEPRECATED OFF)
  add_subdirectory(${HEADWAY_GTEST_SOURCE} ${PROJECT_BINARY_DIR}/googletest EXCLUDE_FROM_ALL SYSTEM)
  unset(CMAKE_WARN_DEPRECATED)
  foreach(target gtest gtest_main gmock gmock_main)
    target_compile_options(${target} PRIVATE -w)
  endforeach()
endif()
if(NOT TARGET GTest::gtest)
  message(WARNING "GoogleTest was not found (Debian, Ubuntu: apt install libgtest-dev): the C++ tests are not built")
endif()
include(GoogleTest)

# Starting a process per test takes 0.1 s under a sanitizer and 0.2 s in an emulator, often longer than the test.
set(HEADWAY_TEST_SHARDS 0 CACHE STRING "Processes among which each GoogleTest program divides its tests; 0: one per test")

# headway_discover_tests(PROGRAM TIMEOUT_S LABEL): registers the tests of a GoogleTest program with ctest, each by its own
# name or, with HEADWAY_TEST_SHARDS, by shards. A shard leaves the results of its tests in test-results/, named
# after itself. TIMEOUT_S is the limit of one test; a shard has the limit of ctest's command line.
function(headway_discover_tests program timeout_s label)
  if(HEADWAY_TEST_SHARDS EQUAL 0 OR label STREQUAL "gpu") # GPU tests that are left out are counted one by one.
    gtest_discover_tests(${program} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT ${timeout_s} LABELS ${label})
    return()
  endif()
  math(EXPR last "${HEADWAY_TEST_SHARDS} - 1")
  foreach(index RANGE ${last})
    set(shard ${program}.${index})
    add_test(NAME ${shard} COMMAND ${program} --gtest_output=xml:${PROJECT_BINARY_DIR}/test-results/${shard}.xml)
    set_tests_properties(
      ${shard} PROPERTIES LABELS ${label}
                          ENVIRONMENT "GTEST_TOTAL_SHARDS=${HEADWAY_TEST_SHARDS};GTEST_SHARD_INDEX=${index}")
  endforeach()
endfunction()
