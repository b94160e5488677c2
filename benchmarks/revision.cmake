# Run at every build: writes OUTPUT, a header with the git revision of SOURCE, and only if it changed.
execute_process(COMMAND git -C "${SOURCE}" describe --always --dirty --abbrev=12 --exclude=*
  OUTPUT_VARIABLE revision OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(failed)
  set(revision "unknown")
endif()
file(CONFIGURE OUTPUT "${OUTPUT}" CONTENT [[#pragma once
inline constexpr const char* kRevision = "@revision@";
inline constexpr const char* kBuildType = "@BUILD_TYPE@";
]] @ONLY)
