# NVIDIA ships no CMake package for this library, and it is part of no CUDA Toolkit: defines NCCL::NCCL. Looks at NCCL_ROOT, beside
# the Toolkit, where Debian's packages are, and in the Python package nvidia-nccl-cu* of the python3 at hand, which PyTorch needs.
if(NOT NCCL_INCLUDE_DIR OR NOT NCCL_LIBRARY)
  execute_process(COMMAND python3 -c "import sys; print(';'.join(path + '/nvidia/nccl' for path in sys.path if path), end='')"
    OUTPUT_VARIABLE quire_python_nccl ERROR_QUIET)
endif()
find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS} PATHS ${quire_python_nccl} PATH_SUFFIXES include)
find_library(NCCL_LIBRARY NAMES nccl libnccl.so.2 HINTS ${CUDAToolkit_LIBRARY_DIR} PATHS ${quire_python_nccl} PATH_SUFFIXES lib)
unset(quire_python_nccl)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(NCCL REQUIRED_VARS NCCL_LIBRARY NCCL_INCLUDE_DIR REASON_FAILURE_MESSAGE
  "quire with CUDA needs NCCL 2: Debian's libnccl-dev, or Python's nvidia-nccl-cu13 (PyTorch brings it), or NCCL_ROOT set to a folder with its include/ and lib/")
if(NCCL_FOUND AND NOT TARGET NCCL::NCCL)
  add_library(NCCL::NCCL UNKNOWN IMPORTED)
  set_target_properties(NCCL::NCCL PROPERTIES
    IMPORTED_LOCATION "${NCCL_LIBRARY}" INTERFACE_INCLUDE_DIRECTORIES "${NCCL_INCLUDE_DIR}")
endif()
