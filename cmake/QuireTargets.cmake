# quire_room(NAME SOURCES ... LINK rooms and packages...): one static library per room; its links are the doors it may use.
# quire_test(NAME SOURCES ... LINK ... [LABELS ...] [PROPERTIES ...]): one GoogleTest executable.

add_library(quire_flags INTERFACE)
target_compile_features(quire_flags INTERFACE cxx_std_20)
# Bits must not depend on the compiler's mood: no contraction of a * b + c into fma anywhere.
target_compile_options(quire_flags INTERFACE -ffp-contract=off)

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

set(QUIRE_ROOMS "" CACHE INTERNAL "")

function(quire_room name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK;OBJECTS" ${ARGN})
  add_library(quire_${name} STATIC ${ARG_SOURCES})
  add_library(quire::${name} ALIAS quire_${name})
  set_target_properties(quire_${name} PROPERTIES POSITION_INDEPENDENT_CODE ON EXPORT_NAME ${name})
  target_include_directories(quire_${name}
    PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:include>
           $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src> $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>)
  target_compile_options(quire_${name} PRIVATE ${QUIRE_WARNING_FLAGS})
  target_link_libraries(quire_${name} PUBLIC quire_flags ${ARG_LINK})
  set(QUIRE_ROOMS ${QUIRE_ROOMS} quire_${name} CACHE INTERNAL "")
endfunction()

function(quire_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;LINK;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE quire_test_main)
  target_compile_options(${name} PRIVATE ${QUIRE_WARNING_FLAGS} -Wno-sign-conversion -Wno-conversion)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${ARG_LINK} GTest::gmock GTest::gtest)
  target_compile_definitions(${name} PRIVATE QUIRE_SOURCE_DIR="${PROJECT_SOURCE_DIR}" QUIRE_BINARY_DIR="${PROJECT_BINARY_DIR}")
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}")
endfunction()
