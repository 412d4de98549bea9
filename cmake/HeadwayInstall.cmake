# SPDX-License-Identifier: Apache-2.0

# Install rules: for a wheel the benchmark programs (headway_add_extension() installs modules), else the CMake package.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# Installs the benchmark programs where benchmarks/harness looks for them: in build/ next to benchmarks/.
function(headway_install_programs)
  foreach(program bench_all_to_all_headway bench_all_to_all_mpi)
    if(TARGET ${program})
      install(TARGETS ${program} RUNTIME DESTINATION headway/_programs/build/benchmarks/all_to_all)
    endif()
  endforeach()
endfunction()

# Installs targets, the public headers of the folders HEADERS, and the file EXPORT.cmake that names the targets to others.
# Usage: headway_install_component(COMPONENT EXPORT TARGETS target... HEADERS folder...)
function(headway_install_component component export)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "" "TARGETS;HEADERS")
  install(TARGETS ${arg_TARGETS} EXPORT ${export}
          ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT ${component}
          LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT ${component}
          INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  list(TRANSFORM arg_HEADERS REPLACE "(.+)" "${PROJECT_SOURCE_DIR}/\\1/include/")
  install(DIRECTORY ${arg_HEADERS} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT ${component}
          FILES_MATCHING PATTERN "*.hpp")
  install(EXPORT ${export} NAMESPACE headway:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/headway COMPONENT ${component})
endfunction()

# Installs a CMake package; other projects use it by find_package(headway). Component headway_comm has headway::comm and
# headway::base below it. Component headway_embedding adds headway::embedding and headway::kernels.
function(headway_install_package)
  set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/headway)
  headway_install_component(headway_comm headwayTargets TARGETS headway_base headway_comm HEADERS base libcomm)
  if(TARGET headway_embedding)
    headway_install_component(headway_embedding headwayEmbeddingTargets TARGETS headway_kernels headway_embedding
                              HEADERS kernels embedding)
  endif()
  configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/headwayConfig.cmake.in ${PROJECT_BINARY_DIR}/headwayConfig.cmake
                                INSTALL_DESTINATION ${package_dir})
  write_basic_package_version_file(${PROJECT_BINARY_DIR}/headwayConfigVersion.cmake COMPATIBILITY SameMinorVersion)
  install(FILES ${PROJECT_BINARY_DIR}/headwayConfig.cmake ${PROJECT_BINARY_DIR}/headwayConfigVersion.cmake
          DESTINATION ${package_dir} COMPONENT headway_comm)
endfunction()
