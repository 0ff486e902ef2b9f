# TROUPE_PROTOCOL: a digest of the headers that define what processes of a cluster send each other, without comments and
# spaces. A plugin brings a runtime of its own, which may have been built long ago: equal digests tell that it will be
# understood.
set(troupe_protocol_headers
  actors/api/actor_type.h actors/core/cluster_protocol.h actors/core/error_chain.h actors/core/protocol.h actors/core/directory_client.h
  collective_groups/membership/messages.h runtime/error.h runtime/transport.h runtime/wire.h runtime/wire_numbers.h daemons/protocol/messages.h)
set(troupe_protocol_text "")
foreach(header IN LISTS troupe_protocol_headers)
  set(troupe_protocol_header ${PROJECT_SOURCE_DIR}/${header})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${troupe_protocol_header})
  file(READ ${troupe_protocol_header} text)
  string(REGEX REPLACE "//[^\n]*" "" text "${text}")
  string(REGEX REPLACE "[ \t\r\n]+" "" text "${text}")
  string(APPEND troupe_protocol_text "${text}")
endforeach()
string(SHA256 TROUPE_PROTOCOL "${troupe_protocol_text}")
string(SUBSTRING ${TROUPE_PROTOCOL} 0 12 TROUPE_PROTOCOL)
