# troupe_add_library(name SOURCES ... PUBLIC lib... PRIVATE lib...): one static library per folder.
function(troupe_add_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  add_library(Troupe::${name} ALIAS ${name})
  target_link_libraries(${name} PUBLIC troupe_settings ${ARG_PUBLIC}
                                PRIVATE $<BUILD_INTERFACE:troupe_warnings> ${ARG_PRIVATE})
endfunction()

# troupe_mutated(name SOURCE...): sources of a library that simulations compile once more, all of them, with faults. They
# are in batches of their own, since the linker takes a batch as a whole.
function(troupe_mutated name)
  set(mutated ${ARGN})
  get_target_property(rest ${name} SOURCES)
  list(REMOVE_ITEM rest ${mutated})
  set_target_properties(${name} PROPERTIES UNITY_BUILD_MODE GROUP)
  foreach(sources rest mutated)
    set(number 0)
    foreach(source IN LISTS ${sources})
      math(EXPR batch "${number} / ${CMAKE_UNITY_BUILD_BATCH_SIZE}")
      math(EXPR number "${number} + 1")
      set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${sources}_${batch})
    endforeach()
  endforeach()
endfunction()

# troupe_add_executable(name SOURCES ... LIBS lib...): a program, named with dashes on disk.
function(troupe_add_executable name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE troupe_settings troupe_warnings ${ARG_LIBS})
  string(REPLACE "_" "-" output ${name})
  set_target_properties(${name} PROPERTIES OUTPUT_NAME ${output}
                        RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
endfunction()

# troupe_precompile(name HEADER...): the target's sources find these read already, and so do those of the
# targets that reuse them.
function(troupe_precompile name)
  target_precompile_headers(${name} PRIVATE ${ARGN})
  troupe_reads_precompiled(${name})
endfunction()
function(troupe_reads_precompiled name)
  # GCC 12 takes its own std::string for ours where it is precompiled, and warns of what is right in it.
  target_compile_options(${name} PRIVATE
    $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess;-Wno-array-bounds;-Wno-restrict;-Wno-stringop-overflow>)
endfunction()

# troupe_add_test(name KIND unit|sim|redis|integration|fuzz SOURCES ... LIBS lib... TIMEOUT seconds
#                 HEADERS target): a GoogleTest program whose cases become CTest tests labelled by kind.
# HEADERS: whose precompiled headers it reads; by default troupe_test_headers.
function(troupe_add_test name)
  cmake_parse_arguments(ARG "" "KIND;TIMEOUT;HEADERS" "SOURCES;LIBS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 60)
  endif()
  if(NOT ARG_HEADERS)
    set(ARG_HEADERS troupe_test_headers)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE troupe_settings troupe_warnings ${ARG_LIBS} GTest::gmock_main)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  # What every test includes is read once for all of them, but for those of LibTorch: its targets bring
  # definitions of their own (_GLIBCXX_USE_CXX11_ABI), which the precompiled headers were not read with.
  if(NOT troupe_torch IN_LIST ARG_LIBS)
    target_precompile_headers(${name} REUSE_FROM ${ARG_HEADERS})
    troupe_reads_precompiled(${name})
  endif()
  if(ARG_KIND STREQUAL unit)  # To compile one takes far longer than to run it.
    target_compile_options(${name} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Og>)
  endif()
  gtest_discover_tests(${name} PROPERTIES LABELS ${ARG_KIND} TIMEOUT ${ARG_TIMEOUT} DISCOVERY_TIMEOUT 60)
endfunction()
