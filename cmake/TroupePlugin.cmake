# troupe_add_plugin(name [C] SOURCES source... [LIBS library...])
# Builds name.so, a plugin (<troupe/plugin.h>), with a runtime of its own. It exports troupe_plugin and nothing else, so that
# it meets no other copy of what it is linked with. C: its types are described in C, and it uses the shared runtime
# libtroupe_c.so (<troupe/c.h>).
set(TROUPE_PLUGIN_MAP ${CMAKE_CURRENT_LIST_DIR}/troupe_plugin.map)
function(troupe_add_plugin name)
  cmake_parse_arguments(PARSE_ARGV 1 ARG "C" "" "SOURCES;LIBS")
  if(ARG_UNPARSED_ARGUMENTS OR NOT ARG_SOURCES)
    message(FATAL_ERROR "troupe_add_plugin(${name}): wanted is (name [C] SOURCES source... [LIBS library...])")
  endif()
  add_library(${name} MODULE ${ARG_SOURCES})
  if(ARG_C)
    target_link_libraries(${name} PRIVATE Troupe::c ${ARG_LIBS})
  else()
    target_link_libraries(${name} PRIVATE Troupe::troupe ${ARG_LIBS})
    target_compile_features(${name} PRIVATE cxx_std_20)
  endif()
  set_target_properties(${name} PROPERTIES PREFIX "" C_VISIBILITY_PRESET hidden CXX_VISIBILITY_PRESET hidden
                                           VISIBILITY_INLINES_HIDDEN ON LINK_DEPENDS ${TROUPE_PLUGIN_MAP})
  target_link_options(${name} PRIVATE -Wl,--version-script=${TROUPE_PLUGIN_MAP})
  if(NOT TROUPE_SANITIZE)  # What it lacks is said when it is linked. A sanitizer's symbols come with the program.
    target_link_options(${name} PRIVATE -Wl,-z,defs)
  endif()
endfunction()
