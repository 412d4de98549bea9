# SPDX-License-Identifier: Apache-2.0

# With ccache a second clean build takes seconds, also in another checkout. A launcher given on the command line wins.
find_program(HEADWAY_CCACHE ccache)
mark_as_advanced(HEADWAY_CCACHE)
if(HEADWAY_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # pch_defines and time_macros allow caching of translation units that use a precompiled header. CCACHE_BASEDIR makes
  # paths inside the checkout relative, so that other checkouts hit the cache.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=true ${HEADWAY_CCACHE})
endif()
