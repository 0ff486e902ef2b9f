#include "tests/integration/capi/packing.h"

#include <stdlib.h>
#include <string.h>

enum { WIRE_VERSION = 1, ARGUMENTS = 71, VALUE = 72 };

static void put(packed* to, const void* bytes, size_t size) {
  if (size > sizeof to->bytes - to->size) abort();
  if (size > 0) memcpy(to->bytes + to->size, bytes, size);
  to->size += size;
}

static void put_byte(packed* to, unsigned byte) {
  const unsigned char one = (unsigned char)byte;
  put(to, &one, 1);
}

static void head(packed* to, unsigned type, unsigned count) {
  if (count > 15) abort();
  to->size = 0;
  put_byte(to, 0x93); /* An array of three. */
  put_byte(to, WIRE_VERSION);
  put_byte(to, type);
  put_byte(to, 0x90 | count);
}

void pack_arguments(packed* to, unsigned count) { head(to, ARGUMENTS, count); }
void pack_result(packed* to) { head(to, VALUE, 1); }

void pack_int(packed* to, int64_t value) {
  int shift;
  put_byte(to, 0xd3); /* int 64 */
  for (shift = 56; shift >= 0; shift -= 8)
    put_byte(to, (unsigned)((uint64_t)value >> shift) & 0xff);
}

void pack_text(packed* to, const char* value) {
  const size_t size = strlen(value);
  if (size > 0xff) abort();
  put_byte(to, 0xd9); /* str 8 */
  put_byte(to, (unsigned)size);
  put(to, value, size);
}

void pack_raw(packed* to, troupe_bytes value) { put(to, value.data, value.size); }

troupe_bytes packed_bytes(const packed* from) {
  troupe_bytes bytes;
  bytes.data = from->bytes;
  bytes.size = from->size;
  return bytes;
}

int unpack_head(unpacker* from, troupe_bytes bytes, int count) {
  const unsigned type = count < 0 ? VALUE : ARGUMENTS;
  from->at = bytes.data;
  from->end = from->at + bytes.size;
  if (bytes.size < 4 || from->at[0] != 0x93 || from->at[1] != WIRE_VERSION || from->at[2] != type)
    return 0;
  if (count >= 0 && from->at[3] != (0x90u | (unsigned)count)) return 0;
  from->at += 4;
  return 1;
}

/* Big-endian. */
static int unpack_bits(unpacker* from, size_t bytes, uint64_t* value) {
  *value = 0;
  if ((size_t)(from->end - from->at) < bytes) return 0;
  for (; bytes > 0; --bytes) *value = *value << 8 | *from->at++;
  return 1;
}

int unpack_int(unpacker* from, int64_t* value) {
  unsigned kind;
  uint64_t bits;
  size_t size;
  if (from->at >= from->end) return 0;
  kind = *from->at++;
  if (kind <= 0x7f || kind >= 0xe0) {
    *value = kind <= 0x7f ? (int64_t)kind : (int64_t)kind - 256;
    return 1;
  }
  if (kind < 0xcc || kind > 0xd3) return 0;
  size = (size_t)1 << ((kind - 0xcc) & 3);
  if (!unpack_bits(from, size, &bits)) return 0;
  /* From 0xd0 on they have a sign, which goes on to the left. */
  if (kind >= 0xd0 && size < 8 && bits >> (8 * size - 1) != 0) bits |= ~(uint64_t)0 << (8 * size);
  *value = (int64_t)bits;
  return 1;
}

/* C++ writes text as bin, others as str. */
int unpack_text(unpacker* from, const char** value, size_t* size) {
  unsigned kind;
  uint64_t bits = 0;
  int found = 1;
  if (from->at >= from->end) return 0;
  kind = *from->at++;
  if (kind >= 0xa0 && kind <= 0xbf) {
    bits = kind & 0x1f;
  } else if (kind == 0xc4 || kind == 0xd9) {
    found = unpack_bits(from, 1, &bits);
  } else if (kind == 0xc5 || kind == 0xda) {
    found = unpack_bits(from, 2, &bits);
  } else {
    found = 0;
  }
  if (!found || (size_t)(from->end - from->at) < bits) return 0;
  *value = (const char*)from->at;
  *size = (size_t)bits;
  from->at += bits;
  return 1;
}

troupe_bytes unpack_rest(const unpacker* from) {
  troupe_bytes bytes;
  bytes.data = from->at;
  bytes.size = (size_t)(from->end - from->at);
  return bytes;
}
