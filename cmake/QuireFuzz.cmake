# quire_fuzzer(NAME SOURCES ... LINK ...): one libFuzzer executable. Needs clang; the tree itself is instrumented by
# -DQUIRE_SANITIZE=fuzzer-no-link,address,undefined.
function(quire_fuzzer name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_compile_options(${name} PRIVATE ${QUIRE_WARNING_FLAGS})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${ARG_LINK})
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
endfunction()
