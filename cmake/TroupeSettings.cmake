# Language level, warnings and sanitizers, as one interface target that every library of the project links.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "Build type" FORCE)
endif()

# Most of a compiler's time goes into headers, so sources of a target are read by the batch. Whoever works on one source
# for long switches it off.
option(TROUPE_UNITY "Compile the sources of a target in batches" ON)
set(CMAKE_UNITY_BUILD ${TROUPE_UNITY})
set(CMAKE_UNITY_BUILD_BATCH_SIZE 8)
if(TROUPE_UNITY)
  # GCC takes the sources of a batch for headers of it.
  add_compile_options($<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
endif()

# A second clone finds what the first has compiled: nothing depends on the folder, also not what debuggers are told.
# The sloppiness is what ccache needs for precompiled headers.
add_compile_options(-ffile-prefix-map=${PROJECT_SOURCE_DIR}=.)
find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  set(launcher ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1
               CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_ctime,include_file_mtime ${CCACHE_PROGRAM})
  set(CMAKE_C_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
endif()

set(TROUPE_SANITIZE "" CACHE STRING "Sanitizers: empty, address or thread")
add_library(troupe_settings INTERFACE)
# Who links Troupe compiles as C++20 or later, and finds its headers as <troupe/...>; nothing else is asked of it.
target_compile_features(troupe_settings INTERFACE cxx_std_20)
target_include_directories(troupe_settings INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
                                                     $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                                     $<INSTALL_INTERFACE:include>)
add_library(troupe_warnings INTERFACE)
option(TROUPE_WERROR "Treat warnings as errors; off for builds by compilers and packages that are not ours" ON)
target_compile_options(troupe_warnings INTERFACE -Wall -Wextra -Wpedantic -Wno-unused-parameter)
if(TROUPE_WERROR)
  target_compile_options(troupe_warnings INTERFACE -Werror)
endif()

if(TROUPE_SANITIZE STREQUAL "address")
  # Boost.Fiber 1.74 has no sanitizer hooks: an exception thrown on a fiber gives false stack reports,
  # so stack instrumentation is off; heap errors are still found.
  add_compile_options(-fsanitize=address,undefined -fno-omit-frame-pointer -fno-sanitize-recover=undefined)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options(--param asan-stack=0)
  else()
    add_compile_options(-mllvm -asan-stack=0)
  endif()
  add_link_options(-fsanitize=address,undefined)
elseif(TROUPE_SANITIZE STREQUAL "thread")
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer)
  add_link_options(-fsanitize=thread)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # It does not see fences. Ours order words in memory that processes share, which it does not follow anyway.
    add_compile_options(-Wno-tsan)
  endif()
else()
  # What the daemons read comes from a network: a write past a buffer ends the process, tables of addresses cannot be
  # written to, and programs are loaded at addresses that nobody can foresee.
  add_compile_options(-fstack-protector-strong)
  add_compile_options("$<$<NOT:$<CONFIG:Debug>>:-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=2>")
  add_link_options(-Wl,-z,relro,-z,now)
  include(CheckPIESupported)
  check_pie_supported(LANGUAGES CXX)
endif()
