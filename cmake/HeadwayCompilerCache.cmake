# ccache makes a second clean build take seconds, in another checkout too; a launcher given on the command line wins.
find_program(HEADWAY_CCACHE ccache)
mark_as_advanced(HEADWAY_CCACHE)
if(HEADWAY_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # pch_defines and time_macros let translation units that use a precompiled header be cached too. Paths of the checkout
  # are relative in the cache.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=true ${HEADWAY_CCACHE})
endif()
