# `cmake --install build/release --component cpp --prefix DIR` gives headers, libraries, daemons and a CMake package, so
# that a program elsewhere can say find_package(Troupe) and link Troupe::troupe, or troupe_add_plugin(...); with
# find_package(Troupe COMPONENTS training) it also links Troupe::training; with
# find_package(Troupe COMPONENTS c) it links Troupe::c, and nothing else need be installed to build it.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(troupe_libraries troupe_settings troupe_runtime troupe_scheduler troupe_actors troupe_collective_groups troupe_protocol
                     troupe_client troupe_public_troupe troupe_public_collectives)
set(troupe_cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Troupe)
install(TARGETS ${troupe_libraries} EXPORT TroupeTargets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT cpp)
install(TARGETS troupe_head troupe_node troupe_guard troupe_local troupe_worker troupe_autoscaler_daemon
        RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT cpp)
install(TARGETS troupe_c EXPORT TroupeCTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT cpp)
if(TARGET troupe_torch)
  install(TARGETS troupe_torch troupe_public_training EXPORT TroupeTorchTargets
          ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT cpp OPTIONAL)
  install(EXPORT TroupeTorchTargets NAMESPACE Troupe:: DESTINATION ${troupe_cmake_dir} COMPONENT cpp)
endif()
# Only what <troupe/...> needs, and under that name: what is "actors/api/future.h" here is <troupe/detail/actors/future.h>.
install(CODE "
  set(troupe_source \"${PROJECT_SOURCE_DIR}\")
  set(troupe_target \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_INCLUDEDIR}/troupe\")
  include(\"${PROJECT_SOURCE_DIR}/cmake/InstallHeaders.cmake\")
" COMPONENT cpp)
configure_file(${PROJECT_SOURCE_DIR}/cmake/troupe.pc.in ${PROJECT_BINARY_DIR}/troupe.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/troupe.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT cpp)
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

# Debug information is most of what is built. Last: it works on what the lines above have put there.
option(TROUPE_INSTALL_STRIPPED "Strip what is installed for C++" ON)
if(TROUPE_INSTALL_STRIPPED AND CMAKE_STRIP)
  set(troupe_programs head node guard local worker autoscaler)
  list(TRANSFORM troupe_programs PREPEND troupe-)
  install(CODE "
    set(root \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}\")
    file(GLOB libraries \"\${root}/${CMAKE_INSTALL_LIBDIR}/libtroupe_*.a\")
    foreach(file \${libraries})
      execute_process(COMMAND \"${CMAKE_STRIP}\" --strip-debug \"\${file}\" COMMAND_ERROR_IS_FATAL ANY)
    endforeach()
    file(GLOB shared \"\${root}/${CMAKE_INSTALL_LIBDIR}/libtroupe_c.so.*.*\")
    set(programs ${troupe_programs})
    list(TRANSFORM programs PREPEND \"\${root}/${CMAKE_INSTALL_BINDIR}/\")
    foreach(file \${shared} \${programs})
      execute_process(COMMAND \"${CMAKE_STRIP}\" --strip-unneeded \"\${file}\" COMMAND_ERROR_IS_FATAL ANY)
    endforeach()
  " COMPONENT cpp)
endif()
