# quire_room(NAME SOURCES ... LINK rooms and packages...): one static library per room; its links are the doors it may use.
# quire_test(NAME SOURCES ... LINK ... [LABELS ...] [TIMEOUT s] [PREFIX p] [ASAN filter] [TSAN filter] [FAR filter]): one program
#   of GoogleTest's.
#   ASAN and TSAN are GoogleTest filters: what of it those sanitizers run. By default AddressSanitizer runs all tests but those
#   labelled model, and ThreadSanitizer none, for it has something to find only where two threads meet. What a sanitizer runs
#   nothing of is not built by its preset, whose target is sanitized_tests.
#   FAR is a GoogleTest filter too: the tests that take gigabytes of memory where that is a GPU's; there they run one at a time.
# quire_emulated_kernels(NAME SOURCES x.cu ...): CUDA kernels and their launchers for the CPU, run by the emulator of
#   tests/support/simt. A static library, and unless a sanitizer is on a second one, NAME_hooks, whose every access to memory the
#   emulator sees. Paths are as for add_library; those that begin with kernels/ are from the project's root.
# quire_emulated_test(NAME SOURCES ... KERNELS names... LINK ...): a quire_test of such kernels, and NAME_hooks, the same test of
#   the second libraries.
# quire_mutation_test(NAME TEST names... SOURCES files... [LIMIT n] [ONLY e] [UNITS files...] [FILTER f] [HOOKS yes|no|only]): breaks
#   the files, kernels of an emulated test, one place at a time (n of them; those that the expression matches), and expects the
#   tests of the filter to fail each time; see scripts/mutate_kernels.py for the options. Without sanitizers only.
# There is none of these under ThreadSanitizer, which cannot follow the emulator's fibers. With QUIRE_CUDA the same tests run the
# kernels that nvcc compiled on a GPU, labelled cuda; without a GPU they are skipped.

add_library(quire_flags INTERFACE)
target_compile_features(quire_flags INTERFACE cxx_std_20)
# Bits must not depend on the compiler's mood: no contraction of a * b + c into fma anywhere.
target_compile_options(quire_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)

set(QUIRE_WARNING_FLAGS -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wnon-virtual-dtor -Woverloaded-virtual)
if(QUIRE_WARNINGS_AS_ERRORS)
  list(APPEND QUIRE_WARNING_FLAGS -Werror)
endif()
# Messages name a file by its path in the sources, not by where they were built.
add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=>")
if(QUIRE_SANITIZE)
  add_compile_options(-fsanitize=${QUIRE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${QUIRE_SANITIZE})
endif()

# Tests are compiled once and run for moments, so their own sources are not worth much optimising; nor, under sanitizers, worth
# UBSan's checks, which watch the library. Together that halves what compiling them takes.
if(QUIRE_SANITIZE)
  set(QUIRE_TEST_FLAGS -O0)
  if(QUIRE_SANITIZE MATCHES "undefined")
    list(APPEND QUIRE_TEST_FLAGS -fno-sanitize=undefined)
  endif()
  set(QUIRE_EMULATOR_FLAGS -O2)  # the emulator and the oracle, which compute for most of their tests' time
else()
  set(QUIRE_TEST_FLAGS "$<$<CONFIG:Release>:-O1>")
  set(QUIRE_EMULATOR_FLAGS "")
endif()

set(QUIRE_ROOMS "" CACHE INTERNAL "")

function(quire_room name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK;OBJECTS" ${ARGN})
  add_library(quire_${name} STATIC ${ARG_SOURCES})
  add_library(quire::${name} ALIAS quire_${name})
  set_target_properties(quire_${name} PROPERTIES POSITION_INDEPENDENT_CODE ON EXPORT_NAME ${name})
  target_include_directories(quire_${name}
    PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:include>
           $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src> $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>)
  target_compile_options(quire_${name} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${QUIRE_WARNING_FLAGS}>")
  target_link_libraries(quire_${name} PUBLIC quire_flags ${ARG_LINK})
  set(QUIRE_ROOMS ${QUIRE_ROOMS} quire_${name} CACHE INTERNAL "")
endfunction()

if(QUIRE_SANITIZE)
  add_custom_target(sanitized_tests)
endif()

# The GoogleTest filter of what this build runs of a test; empty: nothing.
function(quire_test_filter filter asan tsan labels)
  set(wanted "*")
  if(QUIRE_SANITIZE MATCHES "thread")
    set(wanted "${tsan}")
  elseif(QUIRE_SANITIZE AND "model" IN_LIST labels)
    set(wanted "")
  elseif(QUIRE_SANITIZE AND asan)
    set(wanted "${asan}")
  endif()
  set(${filter} "${wanted}" PARENT_SCOPE)
endfunction()

function(quire_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT;PREFIX;ASAN;TSAN;FAR" "SOURCES;LINK;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE quire_test_main)
  target_compile_options(${name} PRIVATE ${QUIRE_WARNING_FLAGS} -Wno-sign-conversion -Wno-conversion ${QUIRE_TEST_FLAGS})
  target_precompile_headers(${name} REUSE_FROM quire_test_main)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${ARG_LINK} GTest::gmock GTest::gtest)
  target_compile_definitions(${name} PRIVATE QUIRE_SOURCE_DIR="${PROJECT_SOURCE_DIR}" QUIRE_BINARY_DIR="${PROJECT_BINARY_DIR}")
  set_property(GLOBAL APPEND PROPERTY QUIRE_TEST_FILTERS
    "$<TARGET_FILE:${name}>=${ARG_ASAN}" "$<TARGET_FILE:${name}>=${ARG_TSAN}" "$<TARGET_FILE:${name}>=${ARG_FAR}")
  if(NOT QUIRE_CUDA AND NOT ARG_LABELS AND "${ARG_LINK}" MATCHES "quire_(simt|emulated)")
    set(ARG_LABELS emulator)  # ctest adds up what they take
  endif()
  quire_test_filter(filter "${ARG_ASAN}" "${ARG_TSAN}" "${ARG_LABELS}")
  if(filter STREQUAL "")
    return()
  endif()
  if(QUIRE_SANITIZE)
    add_dependencies(sanitized_tests ${name})
  endif()
  if(QUIRE_CUDA AND ARG_FAR)
    gtest_discover_tests(${name} TEST_FILTER "${ARG_FAR}" DISCOVERY_TIMEOUT 60
      PROPERTIES RESOURCE_LOCK gpu_memory TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}")
    set(filter "-${ARG_FAR}")
  endif()
  gtest_discover_tests(${name} TEST_PREFIX "${ARG_PREFIX}" TEST_FILTER "${filter}" DISCOVERY_TIMEOUT 60
    PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}")
endfunction()

if(QUIRE_SANITIZE MATCHES "thread" OR QUIRE_CUDA)
  set(QUIRE_HAS_EMULATOR OFF)
else()
  set(QUIRE_HAS_EMULATOR ON)
endif()

if(QUIRE_CUDA)
  add_custom_target(cuda_tests)  # builds what tests and measures the GPU's kernels
endif()

# A quire_test on the GPU.
function(quire_gpu_test name)
  quire_test(${name} ${ARGN} LABELS cuda)
  target_sources(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests/support/gpu/environment.cc)
  target_link_libraries(${name} PRIVATE CUDA::cudart)
  add_dependencies(cuda_tests ${name})
endfunction()

# Those of the library are in quire::kernels; a test's own are compiled here.
function(quire_gpu_kernels name)
  set(sources ${ARGN})
  list(FILTER sources EXCLUDE REGEX "^kernels/")
  if(sources)
    add_library(${name} STATIC ${sources})
    target_compile_options(${name} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:-std=c++20>")
    target_link_libraries(${name} PUBLIC quire_simt quire::kernels)
  else()
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE quire_simt quire::kernels)
  endif()
endfunction()

function(quire_emulated_kernels name)
  cmake_parse_arguments(ARG "" "" "SOURCES" ${ARGN})
  if(QUIRE_CUDA)
    quire_gpu_kernels(${name} ${ARG_SOURCES})
    return()
  elseif(NOT QUIRE_HAS_EMULATOR)
    return()
  endif()
  list(TRANSFORM ARG_SOURCES REPLACE "^kernels/" "${PROJECT_SOURCE_DIR}/kernels/")
  set_source_files_properties(${ARG_SOURCES} PROPERTIES LANGUAGE CXX)
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC quire_simt)
  set(targets ${name})
  if(TARGET quire_simt_hooks)
    add_library(${name}_hooks STATIC ${ARG_SOURCES})
    target_compile_options(${name}_hooks PRIVATE -fsanitize=thread -O1 -g1)  # not linked so
    target_link_libraries(${name}_hooks PUBLIC quire_simt_hooks)
    list(APPEND targets ${name}_hooks)
  endif()
  foreach(target ${targets})
    target_compile_options(${target} PRIVATE ${QUIRE_WARNING_FLAGS} -Wno-sign-conversion -Wno-conversion)
  endforeach()
endfunction()

function(quire_emulated_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT;ASAN;FAR" "SOURCES;KERNELS;LINK;LABELS" ${ARGN})
  if(QUIRE_CUDA)
    quire_gpu_test(${name} SOURCES ${ARG_SOURCES} LINK ${ARG_KERNELS} ${ARG_LINK} TIMEOUT ${ARG_TIMEOUT} FAR ${ARG_FAR})
    return()
  elseif(NOT QUIRE_HAS_EMULATOR)
    return()
  endif()
  # The test's own sources are compiled once.
  add_library(${name}_objects OBJECT ${ARG_SOURCES})
  target_compile_options(${name}_objects PRIVATE ${QUIRE_WARNING_FLAGS} -Wno-sign-conversion -Wno-conversion ${QUIRE_TEST_FLAGS})
  target_precompile_headers(${name}_objects REUSE_FROM quire_test_main)
  target_link_libraries(${name}_objects PRIVATE quire_simt ${ARG_LINK} GTest::gmock GTest::gtest)
  quire_test(${name} SOURCES $<TARGET_OBJECTS:${name}_objects> LINK ${ARG_KERNELS} ${ARG_LINK} TIMEOUT ${ARG_TIMEOUT}
    LABELS ${ARG_LABELS} ASAN ${ARG_ASAN} FAR ${ARG_FAR})
  if(TARGET quire_simt_hooks)
    list(TRANSFORM ARG_KERNELS APPEND _hooks)
    quire_test(${name}_hooks PREFIX hooks. SOURCES $<TARGET_OBJECTS:${name}_objects> LINK ${ARG_KERNELS} ${ARG_LINK}
      TIMEOUT ${ARG_TIMEOUT} LABELS ${ARG_LABELS})
  endif()
endfunction()

function(quire_mutation_test name)
  cmake_parse_arguments(ARG "" "LIMIT;ONLY;FILTER;HOOKS" "TEST;SOURCES;UNITS" ${ARGN})
  if(NOT TARGET quire_simt_hooks OR NOT CMAKE_GENERATOR MATCHES "Ninja")
    return()
  endif()
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  set(options --together --jobs 1)
  foreach(test ${ARG_TEST})
    list(APPEND options --test ${test})
  endforeach()
  foreach(source ${ARG_SOURCES})
    list(APPEND options --source ${source})
  endforeach()
  foreach(unit ${ARG_UNITS})
    list(APPEND options --unit ${unit})
  endforeach()
  foreach(option LIMIT ONLY FILTER HOOKS)
    if(NOT "${ARG_${option}}" STREQUAL "")  # "no" counts
      string(TOLOWER ${option} name_of_option)
      list(APPEND options --${name_of_option} ${ARG_${option}})
    endif()
  endforeach()
  add_test(NAME ${name} COMMAND Python3::Interpreter "${PROJECT_SOURCE_DIR}/scripts/mutate_kernels.py"
    --build "${PROJECT_BINARY_DIR}" ${options})
  set_tests_properties(${name} PROPERTIES TIMEOUT 900 LABELS mutation)
endfunction()
