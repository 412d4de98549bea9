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
