# ccache makes a second clean build take seconds; a launcher given on the command line wins.
find_program(HEADWAY_CCACHE ccache)
mark_as_advanced(HEADWAY_CCACHE)
if(HEADWAY_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # pch_defines and time_macros let translation units that use a precompiled header be cached too.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${HEADWAY_CCACHE})
endif()
