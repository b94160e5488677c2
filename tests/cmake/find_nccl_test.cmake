# cmake -DSOURCE=... -DWORK=... -P find_nccl_test.cmake: where FindNCCL.cmake looks, on a machine that shows it no NCCL of its own;
# and what it says without one.
cmake_minimum_required(VERSION 3.25)
file(REMOVE_RECURSE "${WORK}")
foreach(folder python/nvidia/nccl root)
  file(WRITE "${WORK}/${folder}/include/nccl.h" "")
  file(WRITE "${WORK}/${folder}/lib/libnccl.so.2" "")
endforeach()

file(WRITE "${WORK}/find.cmake" [[
cmake_minimum_required(VERSION 3.25)
foreach(place CMAKE_SYSTEM_PATH SYSTEM_ENVIRONMENT_PATH CMAKE_ENVIRONMENT_PATH)
  set(CMAKE_FIND_USE_${place} OFF)
endforeach()
set(CMAKE_FIND_LIBRARY_PREFIXES lib)
set(CMAKE_FIND_LIBRARY_SUFFIXES .so .a)
set(CMAKE_MODULE_PATH "${SOURCE}/cmake")
function(add_library)  # scripts have no targets
endfunction()
function(set_target_properties)
endfunction()
find_package(NCCL REQUIRED)
message("found ${NCCL_INCLUDE_DIR} ${NCCL_LIBRARY}")
]])

function(expect_found_in folder)
  execute_process(COMMAND ${ARGN} OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE status)
  if(NOT status EQUAL 0 OR NOT output MATCHES "found ${WORK}/${folder}/include ${WORK}/${folder}/lib/libnccl.so.2")
    message(SEND_ERROR "not found in ${folder}: ${output}")
  endif()
endfunction()
set(find "${CMAKE_COMMAND}" "-DSOURCE=${SOURCE}" -P "${WORK}/find.cmake")
expect_found_in(python/nvidia/nccl "${CMAKE_COMMAND}" -E env "PYTHONPATH=${WORK}/python" ${find})
expect_found_in(root "${CMAKE_COMMAND}" -E env "PYTHONPATH=${WORK}/python" "NCCL_ROOT=${WORK}/root" ${find})

# No python3 in the path either.
file(MAKE_DIRECTORY "${WORK}/empty")
execute_process(COMMAND "${CMAKE_COMMAND}" -E env "PATH=${WORK}/empty" ${find}
  OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE status)
string(REGEX REPLACE "[ \n]+" " " output "${output}")
if(status EQUAL 0 OR NOT output MATCHES "missing: NCCL_LIBRARY NCCL_INCLUDE_DIR.*needs NCCL 2: .*libnccl-dev.*nvidia-nccl-cu13.*NCCL_ROOT")
  message(SEND_ERROR "without NCCL: ${status}, ${output}")
endif()
