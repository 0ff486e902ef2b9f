# `cmake --install build/release --component cpp --prefix DIR` gives headers, libraries, daemons and a CMake package, so
# that a program elsewhere can say find_package(Troupe) and link Troupe::troupe_daemons, or troupe_add_plugin(...); with
# find_package(Troupe COMPONENTS c) it links Troupe::troupe_c, and nothing else need be installed to build it.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(troupe_libraries troupe_settings troupe_runtime troupe_scheduler troupe_actors troupe_autoscaler troupe_collective_groups
                     troupe_daemons)
set(troupe_cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Troupe)
install(TARGETS ${troupe_libraries} EXPORT TroupeTargets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT cpp)
install(TARGETS troupe_head troupe_node troupe_local troupe_worker troupe_autoscaler_daemon
        RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT cpp)
install(TARGETS troupe_c EXPORT TroupeCTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT cpp)
foreach(folder runtime scheduler actors autoscaler capi collective_groups daemons)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/${folder} DESTINATION include/troupe COMPONENT cpp
          FILES_MATCHING PATTERN "*.h" PATTERN "internal" EXCLUDE PATTERN "torch" EXCLUDE)
endforeach()
install(EXPORT TroupeTargets NAMESPACE Troupe:: DESTINATION ${troupe_cmake_dir} COMPONENT cpp)
install(EXPORT TroupeCTargets NAMESPACE Troupe:: DESTINATION ${troupe_cmake_dir} COMPONENT cpp)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/TroupeConfig.cmake.in
                              ${PROJECT_BINARY_DIR}/TroupeConfig.cmake
                              INSTALL_DESTINATION ${troupe_cmake_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/TroupeConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/TroupeConfig.cmake ${PROJECT_BINARY_DIR}/TroupeConfigVersion.cmake
              ${PROJECT_SOURCE_DIR}/cmake/TroupeDependencies.cmake
              ${PROJECT_SOURCE_DIR}/cmake/TroupePlugin.cmake ${PROJECT_SOURCE_DIR}/cmake/troupe_plugin.map
        DESTINATION ${troupe_cmake_dir} COMPONENT cpp)
