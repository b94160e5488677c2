# quire::quire, the one target that users link; install rules come with it.
add_library(quire INTERFACE)
add_library(quire::quire ALIAS quire)
target_link_libraries(quire INTERFACE quire_engine)
