# quire_bench_report: what the benchmarks share (report.h, command_line.h, json_lines.h). Included wherever benchmarks or
# their tests are built.
include_guard(GLOBAL)
find_package(CLI11 REQUIRED)

# The revision that a report names is looked up at every build, and recompiles one file when it changed.
set(quire_revision_folder "${PROJECT_BINARY_DIR}/benchmarks/generated")
add_custom_target(quire_bench_revision BYPRODUCTS "${quire_revision_folder}/benchmarks/revision.h"
  COMMAND "${CMAKE_COMMAND}" "-DSOURCE=${PROJECT_SOURCE_DIR}" "-DBUILD_TYPE=$<CONFIG>"
    "-DOUTPUT=${quire_revision_folder}/benchmarks/revision.h" -P "${CMAKE_CURRENT_LIST_DIR}/revision.cmake")
add_library(quire_bench_report STATIC "${CMAKE_CURRENT_LIST_DIR}/command_line.cc" "${CMAKE_CURRENT_LIST_DIR}/json_lines.cc"
  "${CMAKE_CURRENT_LIST_DIR}/report.cc")
add_dependencies(quire_bench_report quire_bench_revision)
target_compile_options(quire_bench_report PRIVATE ${QUIRE_WARNING_FLAGS} ${QUIRE_TEST_FLAGS})
target_include_directories(quire_bench_report PUBLIC "${PROJECT_SOURCE_DIR}" PRIVATE "${quire_revision_folder}")
target_link_libraries(quire_bench_report PUBLIC quire::quire fmt::fmt Boost::json CLI11::CLI11)
