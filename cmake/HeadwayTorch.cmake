# Defines headway::torch: the headers and libraries of the torch that the chosen Python imports, and that Python's headers.
#
# find_package(Torch) is not used: with the PyPI build of torch it demands a CUDA toolkit, and of the same version,
# although nothing here needs one. pybind11 is the copy inside torch, so that c10d types cross the border.
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)

set(query [[
import importlib.util, pathlib, sys
spec = importlib.util.find_spec("torch")
if spec is None:
    sys.exit("torch is not installed")
root = pathlib.Path(spec.origin).parent
values = {}
exec((root / "version.py").read_text(), values)
print(root, values["__version__"], sep=";", end="")
]])
execute_process(COMMAND ${Python_EXECUTABLE} -c "${query}" OUTPUT_VARIABLE answer ERROR_VARIABLE error RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  string(STRIP "${error}" error)
  message(FATAL_ERROR "${Python_EXECUTABLE}: ${error}. Run `make build`, which installs it in .venv, "
                      "or configure with -DHEADWAY_BUILD_TORCH=OFF for the C++ library alone.")
endif()
list(GET answer 0 HEADWAY_TORCH_ROOT)
list(GET answer 1 HEADWAY_TORCH_VERSION)
message(STATUS "torch ${HEADWAY_TORCH_VERSION} in ${HEADWAY_TORCH_ROOT}")

add_library(headway_torch INTERFACE)
add_library(headway::torch ALIAS headway_torch)
target_include_directories(headway_torch SYSTEM INTERFACE ${HEADWAY_TORCH_ROOT}/include
                                                          ${HEADWAY_TORCH_ROOT}/include/torch/csrc/api/include)
# USE_C10D_GLOO is set for torch's own objects; headers that declare the Gloo group look at it.
target_compile_definitions(headway_torch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
foreach(library c10 torch_cpu torch_python)
  add_library(headway_torch_${library} SHARED IMPORTED)
  set_target_properties(headway_torch_${library} PROPERTIES IMPORTED_LOCATION ${HEADWAY_TORCH_ROOT}/lib/lib${library}.so)
  target_link_libraries(headway_torch INTERFACE headway_torch_${library})
endforeach()
# The CUDA build's other libraries are loaded by `import torch` before headway._C is.
target_link_options(headway_torch INTERFACE -Wl,--allow-shlib-undefined)
target_link_libraries(headway_torch INTERFACE Python::Module)

# Defines `target`, the Python extension headway.<name> of the sources behind it, put beside the Python that imports it.
function(headway_add_extension target name)
  Python_add_library(${target} MODULE WITH_SOABI ${ARGN})
  headway_apply_flags(${target})
  target_link_libraries(${target} PRIVATE headway::torch)
  # Of a libstdc++ that a toolchain links statically nothing is seen: half of it would be taken from that of torch.
  target_link_options(${target} PRIVATE -Wl,--exclude-libs,ALL)
  # Each of torch's headers costs a minute when read once for every file. In brackets, they are found by a path that all
  # checkouts have in common, so that what is compiled is found in the cache.
  target_include_directories(${target} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
  target_precompile_headers(${target} PRIVATE <torch_headers.hpp>)
  set_target_properties(${target} PROPERTIES OUTPUT_NAME ${name} CXX_VISIBILITY_PRESET hidden)
  if(SKBUILD)
    install(TARGETS ${target} LIBRARY DESTINATION headway)
  else()
    set_target_properties(${target} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${PROJECT_SOURCE_DIR}/python/headway)
  endif()
endfunction()
