# SPDX-License-Identifier: Apache-2.0

# The default is RelWithDebInfo with asserts. They check invariants of the channels and are cheap compared to a message.
# Release, used for wheels, is the same without asserts.
get_property(is_multi_config GLOBAL PROPERTY GENERATOR_IS_MULTI_CONFIG)
if(NOT is_multi_config AND NOT CMAKE_BUILD_TYPE AND PROJECT_IS_TOP_LEVEL)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "Debug, Release or RelWithDebInfo" FORCE)
endif()
if(PROJECT_IS_TOP_LEVEL)
  # Line numbers serve traces and profiles. Variables (-g) would take a quarter of the compile time: use Debug for them.
  set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O3 -g1")
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
endif()
