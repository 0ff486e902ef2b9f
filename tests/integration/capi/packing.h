/* As much of MessagePack as the tests in C need: whole numbers and text. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <troupe/c.h>

/* An argument list or a value that is being written. What does not fit ends the test. */
typedef struct packed {
  unsigned char bytes[1024];
  size_t size;
} packed;

/* [1, 71, [...]]: the head of a list of `count` arguments, which follow. */
void pack_arguments(packed* to, unsigned count);
/* [1, 72, [...]]: the head of the result, which follows. */
void pack_result(packed* to);
void pack_int(packed* to, int64_t value);
void pack_text(packed* to, const char* value);
/* A value that is packed already. */
void pack_raw(packed* to, troupe_bytes value);
troupe_bytes packed_bytes(const packed* from);

/* What is read, from the front. */
typedef struct unpacker {
  const unsigned char* at;
  const unsigned char* end;
} unpacker;

/* 1 if these are `count` arguments, or a result if `count` is -1; what follows are its values. */
int unpack_head(unpacker* from, troupe_bytes bytes, int count);
int unpack_int(unpacker* from, int64_t* value);
/* Without the end that C wants: `size` bytes. */
int unpack_text(unpacker* from, const char** value, size_t* size);
/* The rest, whatever it is. */
troupe_bytes unpack_rest(const unpacker* from);
