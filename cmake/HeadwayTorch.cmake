# SPDX-License-Identifier: Apache-2.0

# Defines two sets of headers and libraries of the torch that the chosen Python imports:
#   headway::torch          for code that runs in any process;
#   headway::torch_python   for Python extensions: adds libtorch_python and the headers of Python.
#
# It does not use find_package(Torch): with the PyPI build of torch this requires a CUDA toolkit of the same version,
# which is not needed here. pybind11 is the copy inside torch, so that extensions can exchange c10d types with torch.
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)

set(HEADWAY_TORCH_ROOT "" CACHE PATH "Folder of the package torch to build against; empty: the one that Python imports")
mark_as_advanced(HEADWAY_TORCH_ROOT)

# Prints the folder of torch and its version. Reads them without an import of torch, which takes seconds.
set(query [[
import importlib.util, pathlib, sys
if len(sys.argv) > 1:
    root = pathlib.Path(sys.argv[1])
else:
    spec = importlib.util.find_spec("torch")
    if spec is None:
        sys.exit("torch is not installed")
    root = pathlib.Path(spec.origin).parent
if not (root / "version.py").exists():
    sys.exit(f"no torch is in {root}")
values = {}
exec((root / "version.py").read_text(), values)
print(root, values["__version__"], sep=";", end="")
]])
execute_process(COMMAND ${Python_EXECUTABLE} -c "${query}" ${HEADWAY_TORCH_ROOT}
                OUTPUT_VARIABLE answer ERROR_VARIABLE error RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  string(STRIP "${error}" error)
  message(FATAL_ERROR "${Python_EXECUTABLE}: ${error}. Run `make build`, which installs it in .venv, "
                      "or configure with -DHEADWAY_BUILD_TORCH=OFF for the C++ library alone.")
endif()
list(GET answer 0 torch_root)
list(GET answer 1 HEADWAY_TORCH_VERSION)
message(STATUS "torch ${HEADWAY_TORCH_VERSION} in ${torch_root}")

add_library(headway_torch INTERFACE)
add_library(headway::torch ALIAS headway_torch)
target_include_directories(headway_torch SYSTEM INTERFACE ${torch_root}/include
                                                          ${torch_root}/include/torch/csrc/api/include)
# torch itself is compiled with USE_C10D_GLOO, and its headers declare the Gloo group only if it is defined.
target_compile_definitions(headway_torch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
add_library(headway_torch_python INTERFACE)
add_library(headway::torch_python ALIAS headway_torch_python)
foreach(library c10 torch torch_cpu torch_python)
  add_library(headway_torch_lib_${library} SHARED IMPORTED)
  set_target_properties(headway_torch_lib_${library} PROPERTIES IMPORTED_LOCATION ${torch_root}/lib/lib${library}.so)
endforeach()
target_link_libraries(headway_torch INTERFACE headway_torch_lib_c10 headway_torch_lib_torch_cpu)
# For programs without Python that load compiled models: libtorch.so brings the libraries of all devices.
add_library(headway_torch_whole INTERFACE)
add_library(headway::torch_whole ALIAS headway_torch_whole)
target_link_libraries(headway_torch_whole INTERFACE headway::torch headway_torch_lib_torch)
# `import torch` loads the other libraries of torch's CUDA build before those of headway are loaded.
target_link_options(headway_torch INTERFACE -Wl,--allow-shlib-undefined)
target_link_libraries(headway_torch_python INTERFACE headway::torch headway_torch_lib_torch_python Python::Module)

# A precompiled header, because each of torch's headers costs a minute if every file parses it. Angle brackets keep the
# path of the checkout out of the generated file, so that all checkouts share the compiler cache.
function(headway_precompile_torch_headers target)
  target_include_directories(${target} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
  target_precompile_headers(${target} PRIVATE <torch_headers.hpp>)
endfunction()

# Puts a library that Python loads into the package headway.
function(headway_install_module target)
  if(SKBUILD)
    install(TARGETS ${target} LIBRARY DESTINATION headway)
  else()
    set_target_properties(${target} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${PROJECT_SOURCE_DIR}/python/headway)
  endif()
endfunction()

# Adds `target`: the Python extension headway.<name>, built from the remaining arguments into python/headway.
function(headway_add_extension target name)
  Python_add_library(${target} MODULE WITH_SOABI ${ARGN})
  headway_apply_flags(${target})
  target_link_libraries(${target} PRIVATE headway::torch_python)
  # Hide a statically linked libstdc++. Otherwise some of its symbols would be resolved to the copy that torch uses.
  target_link_options(${target} PRIVATE -Wl,--exclude-libs,ALL)
  headway_precompile_torch_headers(${target})
  set_target_properties(${target} PROPERTIES OUTPUT_NAME ${name} CXX_VISIBILITY_PRESET hidden)
  headway_install_module(${target})
endfunction()
