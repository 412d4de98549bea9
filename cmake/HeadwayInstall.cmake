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

# Installs a CMake package; other projects use it by find_package(headway). Component headway_comm has headway::comm and
# headway::base below it. Component headway_embedding adds headway::embedding and headway::kernels.
function(headway_install_package)
  set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/headway)
  install(TARGETS headway_base headway_comm EXPORT headwayTargets
          ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT headway_comm
          LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT headway_comm
          INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/base/include/ ${PROJECT_SOURCE_DIR}/libcomm/include/
          DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT headway_comm
          FILES_MATCHING PATTERN "*.hpp")
  install(EXPORT headwayTargets NAMESPACE headway:: DESTINATION ${package_dir} COMPONENT headway_comm)
  if(TARGET headway_embedding)
    install(TARGETS headway_kernels headway_embedding EXPORT headwayEmbeddingTargets
            ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT headway_embedding
            LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT headway_embedding
            INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
    install(DIRECTORY ${PROJECT_SOURCE_DIR}/kernels/include/ ${PROJECT_SOURCE_DIR}/embedding/include/
            DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT headway_embedding
            FILES_MATCHING PATTERN "*.hpp")
    install(EXPORT headwayEmbeddingTargets NAMESPACE headway:: DESTINATION ${package_dir} COMPONENT headway_embedding)
  endif()
  configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/headwayConfig.cmake.in ${PROJECT_BINARY_DIR}/headwayConfig.cmake
                                INSTALL_DESTINATION ${package_dir})
  write_basic_package_version_file(${PROJECT_BINARY_DIR}/headwayConfigVersion.cmake COMPATIBILITY SameMinorVersion)
  install(FILES ${PROJECT_BINARY_DIR}/headwayConfig.cmake ${PROJECT_BINARY_DIR}/headwayConfigVersion.cmake
          DESTINATION ${package_dir} COMPONENT headway_comm)
endfunction()
