# Writes HEADER with QUIRE_GIT_REVISION of SOURCE_DIR: run at every build, touches the file only if the revision is another.
cmake_minimum_required(VERSION 3.25)
execute_process(COMMAND git -C "${SOURCE_DIR}" describe --always --dirty --abbrev=12 --exclude=*
  OUTPUT_VARIABLE revision OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE status)
if(NOT status EQUAL 0 OR NOT revision)
  set(revision unknown)
endif()
file(CONFIGURE OUTPUT "${HEADER}" CONTENT "#pragma once\n#define QUIRE_GIT_REVISION \"@revision@\"\n" @ONLY)
