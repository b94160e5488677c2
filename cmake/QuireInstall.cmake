# quire::quire, the one target that users link, and the rules that install it with the public headers.
# The rooms are linked, but their folders, flags and packages do not reach the user's own sources.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

add_library(quire INTERFACE)
add_library(quire::quire ALIAS quire)
target_compile_features(quire INTERFACE cxx_std_20)
target_include_directories(quire INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:include>)
target_link_libraries(quire INTERFACE $<LINK_ONLY:quire_engine>)

option(QUIRE_INSTALL "Make the install rules" ${PROJECT_IS_TOP_LEVEL})
if(NOT QUIRE_INSTALL)
  return()
endif()

set(quire_config_dir "${CMAKE_INSTALL_LIBDIR}/cmake/quire")
set_target_properties(quire_flags PROPERTIES EXPORT_NAME flags)
install(TARGETS quire quire_flags ${QUIRE_ROOMS} EXPORT quireTargets ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(EXPORT quireTargets NAMESPACE quire:: DESTINATION "${quire_config_dir}")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/quire" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" FILES_MATCHING PATTERN "*.h")

configure_package_config_file("${CMAKE_CURRENT_LIST_DIR}/quireConfig.cmake.in" "${PROJECT_BINARY_DIR}/quireConfig.cmake"
  INSTALL_DESTINATION "${quire_config_dir}")
# Before 1.0 a minor version may change the API.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/quireConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/quireConfig.cmake" "${PROJECT_BINARY_DIR}/quireConfigVersion.cmake"
  "${CMAKE_CURRENT_LIST_DIR}/FindNCCL.cmake" "${CMAKE_CURRENT_LIST_DIR}/FindOniguruma.cmake" "${CMAKE_CURRENT_LIST_DIR}/FindUtf8proc.cmake"
  "${CMAKE_CURRENT_LIST_DIR}/FindXXHash.cmake" DESTINATION "${quire_config_dir}")
