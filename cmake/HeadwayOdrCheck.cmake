# SPDX-License-Identifier: Apache-2.0

# Target odr_check: finds violations of the One Definition Rule, for instance two enums of one name in one namespace.
# The compiler sees them only when it compiles all parts together, at link time (-flto -Wodr). Nothing is optimized and
# the program is never run. Parts that need torch are left out: their link takes minutes.
foreach(part headway_base headway_comm headway_kernels headway_embedding headway_hybrid headway_serving)
  if(TARGET ${part})
    list(APPEND parts ${part})
  endif()
endforeach()

add_executable(odr_check ${PROJECT_SOURCE_DIR}/cmake/odr_check.cpp)
foreach(part ${parts})
  target_link_libraries(odr_check PRIVATE $<LINK_LIBRARY:WHOLE_ARCHIVE,${part}>)
endforeach()
set_target_properties(odr_check ${parts} PROPERTIES INTERPROCEDURAL_OPTIMIZATION ON)
target_link_options(odr_check PRIVATE -Wodr -Wlto-type-mismatch -Werror)
