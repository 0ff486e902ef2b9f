// Adapter of msgpack-cxx: the only file that includes it.
#include "runtime/wire.h"

#include <bit>
#include <utility>

#define MSGPACK_NO_BOOST 1
#include <msgpack.hpp>

namespace troupe::wire {

namespace {

constexpr size_t kSparesMax = 8;  // Of a thread: as deep as messages are coded inside others.
constexpr size_t kSpareBytesMax = 64 << 10;

// What coding a message takes is used again by the next: most are small, and many.
template <class T>
class Spares {
 public:
  std::unique_ptr<T> Take() {
    if (spares_.empty()) return std::make_unique<T>();
    std::unique_ptr<T> one = std::move(spares_.back());
    spares_.pop_back();
    return one;
  }
  void Give(std::unique_ptr<T> one) {
    if (spares_.size() < kSparesMax && one->Clear()) spares_.push_back(std::move(one));
  }

 private:
  std::vector<std::unique_ptr<T>> spares_;
};

// A thread may end, and with it its spares, before the last coder that it has made.
template <class T>
Spares<T>* SparesOfThread() {
  thread_local bool ended = false;
  struct Ending {
    Spares<T> spares;
    ~Ending() { ended = true; }
  };
  thread_local Ending ending;
  return ended ? nullptr : &ending.spares;
}

template <class T>
std::unique_ptr<T> TakeSpare() {
  Spares<T>* const spares = SparesOfThread<T>();
  return spares == nullptr ? std::make_unique<T>() : spares->Take();
}

template <class T>
void GiveSpare(std::unique_ptr<T> one) {
  if (Spares<T>* const spares = SparesOfThread<T>(); spares != nullptr && one)
    spares->Give(std::move(one));
}

struct StringBuffer {
  std::string bytes;
  void write(const char* data, size_t size) { bytes.append(data, size); }
};

}  // namespace

struct Writer::Impl {
  StringBuffer buffer;
  msgpack::packer<StringBuffer> packer{buffer};
  bool Clear() {
    buffer.bytes.clear();
    return buffer.bytes.capacity() <= kSpareBytesMax;
  }
};

Writer::Writer(Numbers numbers) : impl_(TakeSpare<Impl>()), numbers_(numbers) {}
Writer::~Writer() { GiveSpare(std::move(impl_)); }
void Writer::Array(size_t elements) { impl_->packer.pack_array(static_cast<uint32_t>(elements)); }
void Writer::Map(size_t elements) { impl_->packer.pack_map(static_cast<uint32_t>(elements)); }
void Writer::Bool(bool value) { value ? impl_->packer.pack_true() : impl_->packer.pack_false(); }
void Writer::Int(int64_t value) { impl_->packer.pack_int64(value); }
void Writer::Uint(uint64_t value) { impl_->packer.pack(value); }
void Writer::Double(double value) {
  // Not pack_double: it packs whole numbers as integers, which loses the sign of zero.
  constexpr char kFloat64 = '\xcb';
  char bytes[9] = {kFloat64};
  const auto bits = std::bit_cast<uint64_t>(value);
  for (int i = 0; i < 8; ++i) bytes[1 + i] = static_cast<char>(bits >> (56 - 8 * i));
  impl_->buffer.write(bytes, sizeof bytes);
}
void Writer::Bytes(std::string_view value) {
  impl_->packer.pack_bin(static_cast<uint32_t>(value.size()));
  impl_->packer.pack_bin_body(value.data(), static_cast<uint32_t>(value.size()));
}
void Writer::Packed(char code, std::string_view elements) {
  impl_->packer.pack_ext(elements.size(), static_cast<int8_t>(code));
  impl_->packer.pack_ext_body(elements.data(), static_cast<uint32_t>(elements.size()));
}
std::string Writer::Take() {
  std::string& bytes = impl_->buffer.bytes;
  // A large one is handed over; a small one is copied, and its room used again.
  std::string out = bytes.size() > kSpareBytesMax ? std::move(bytes) : bytes;
  bytes.clear();
  return out;
}

struct Reader::Impl {
  struct Level {
    const msgpack::object* elements = nullptr;  // Array elements, or null for a map.
    const msgpack::object_kv* pairs = nullptr;
    size_t size = 0;  // Values to read: elements, or 2 per pair.
    size_t next = 0;
  };

  msgpack::zone zone;
  msgpack::object root;
  std::vector<Level> levels;
  std::string problem;
  bool root_taken = false;
  size_t size = 0;

  bool Clear() {
    zone.clear();
    root = {};
    levels.clear();
    problem.clear();
    root_taken = false;
    return size <= kSpareBytesMax;
  }

  // Keeps the first problem, with the place as indices from the outermost array inwards.
  void Fail(std::string_view why) {
    if (!problem.empty()) return;
    problem = std::string(why);
    std::string place;
    for (const Level& level : levels) {
      if (level.next > 0) place += "[" + std::to_string(level.next - 1) + "]";
    }
    if (!place.empty()) problem += " at " + place;
  }

  // The next value to read, or null after a failure.
  const msgpack::object* Next() {
    if (!problem.empty()) return nullptr;
    if (levels.empty()) {
      if (root_taken) {
        Fail("read past the end of the message");
        return nullptr;
      }
      root_taken = true;
      return &root;
    }
    Level& level = levels.back();
    if (level.next >= level.size) {
      Fail("too few elements");
      return nullptr;
    }
    const size_t index = level.next++;
    if (level.pairs == nullptr) return &level.elements[index];
    const msgpack::object_kv& pair = level.pairs[index / 2];
    return index % 2 == 0 ? &pair.key : &pair.val;
  }
};

Reader::Reader(std::string_view bytes, bool lenient) : impl_(TakeSpare<Impl>()), lenient_(lenient) {
  impl_->size = bytes.size();
  if (bytes.size() > kWireFrameBytesMax) {
    Fail("frame over the size limit");
    return;
  }
  // Every element takes at least one byte, so a count above the frame's size is a lie that must not
  // allocate.
  const size_t elements = std::min(kWireElementsMax, bytes.size());
  try {
    size_t offset = 0;
    const msgpack::unpack_limit limit(elements, elements, bytes.size(), bytes.size(), bytes.size(),
                                      kWireDepthMax);
    impl_->root = msgpack::unpack(
        impl_->zone, bytes.data(), bytes.size(), offset,
        [](msgpack::type::object_type, std::size_t, void*) { return true; }, nullptr, limit);
    if (offset != bytes.size()) Fail("trailing bytes after the message");
  } catch (const msgpack::array_size_overflow& e) {
    std::string why = std::string("not MessagePack within limits: ") + e.what();
    if (elements == kWireElementsMax)
      why += "; a list has at most " + std::to_string(kWireElementsMax) +
             " elements: pass more in parts, or numbers as a vector or array of them";
    Fail(why);
  } catch (const std::exception& e) {
    Fail(std::string("not MessagePack within limits: ") + e.what());
  }
}
Reader::~Reader() { GiveSpare(std::move(impl_)); }

size_t Reader::Array() {
  const msgpack::object* object = impl_->Next();
  if (object != nullptr && object->type != msgpack::type::ARRAY) Fail("expected an array");
  Impl::Level level;
  if (!failed()) {
    level.elements = object->via.array.ptr;
    level.size = object->via.array.size;
  }
  impl_->levels.push_back(level);
  return level.size;
}

size_t Reader::Map() {
  const msgpack::object* object = impl_->Next();
  if (object != nullptr && object->type != msgpack::type::MAP) Fail("expected a map");
  Impl::Level level;
  if (!failed()) {
    level.pairs = object->via.map.ptr;
    level.size = size_t{2} * object->via.map.size;
  }
  impl_->levels.push_back(level);
  return level.size / 2;
}

void Reader::Leave() {
  if (impl_->levels.empty()) {
    Fail("Leave without a level");
    return;
  }
  const Impl::Level& level = impl_->levels.back();
  if (level.next < level.size) Fail("too many elements");
  impl_->levels.pop_back();
}

void Reader::LeaveRest() {
  if (impl_->levels.empty()) return Fail("Leave without a level");
  impl_->levels.pop_back();
}

bool Reader::Bool() {
  const msgpack::object* object = impl_->Next();
  if (object == nullptr) return false;
  if (object->type != msgpack::type::BOOLEAN) {
    Fail("expected a boolean");
    return false;
  }
  return object->via.boolean;
}

int64_t Reader::Int() {
  const msgpack::object* object = impl_->Next();
  if (object == nullptr) return 0;
  if (object->type == msgpack::type::NEGATIVE_INTEGER) return object->via.i64;
  if (object->type == msgpack::type::POSITIVE_INTEGER && object->via.u64 <= INT64_MAX) {
    return static_cast<int64_t>(object->via.u64);
  }
  Fail("expected a signed integer");
  return 0;
}

uint64_t Reader::Uint() {
  const msgpack::object* object = impl_->Next();
  if (object == nullptr) return 0;
  if (object->type == msgpack::type::POSITIVE_INTEGER) return object->via.u64;
  Fail("expected an unsigned integer");
  return 0;
}

double Reader::Double() {
  const msgpack::object* object = impl_->Next();
  if (object == nullptr) return 0;
  if (object->type == msgpack::type::FLOAT64 || object->type == msgpack::type::FLOAT32)
    return object->via.f64;
  // Other writers pack a number without a fraction as an integer.
  if (object->type == msgpack::type::POSITIVE_INTEGER) return static_cast<double>(object->via.u64);
  if (object->type == msgpack::type::NEGATIVE_INTEGER) return static_cast<double>(object->via.i64);
  Fail("expected a number");
  return 0;
}

std::string Reader::Bytes() {
  const msgpack::object* object = impl_->Next();
  if (object == nullptr) return {};
  if (object->type == msgpack::type::BIN) return {object->via.bin.ptr, object->via.bin.size};
  if (object->type == msgpack::type::STR) return {object->via.str.ptr, object->via.str.size};
  Fail("expected bytes");
  return {};
}

Reader::PackedNumbers Reader::Packed() {
  const msgpack::object* object = impl_->Next();
  if (object == nullptr) return {};
  if (object->type != msgpack::type::EXT) {
    Fail("expected packed numbers");
    return {};
  }
  const auto code = static_cast<char>(object->via.ext.type());
  const size_t bytes = NumberBytes(code);
  if (bytes == 0 || object->via.ext.size % bytes != 0) {
    Fail(bytes == 0 ? "an extension that is unknown" : "packed numbers that are cut short");
    return {};
  }
  return {code, {object->via.ext.data(), object->via.ext.size}};
}

Reader::Kind Reader::Peek() const {
  if (failed()) return Kind::kNone;
  const msgpack::object* object = impl_->root_taken ? nullptr : &impl_->root;
  if (!impl_->levels.empty()) {
    const Impl::Level& level = impl_->levels.back();
    if (level.next >= level.size) return Kind::kNone;
    object = level.pairs == nullptr ? &level.elements[level.next]
             : level.next % 2 == 0  ? &level.pairs[level.next / 2].key
                                    : &level.pairs[level.next / 2].val;
  }
  if (object == nullptr) return Kind::kNone;
  switch (object->type) {
    case msgpack::type::BOOLEAN:
      return Kind::kBool;
    case msgpack::type::NEGATIVE_INTEGER:
      return Kind::kInt;
    case msgpack::type::POSITIVE_INTEGER:
      return Kind::kUint;
    case msgpack::type::FLOAT32:
    case msgpack::type::FLOAT64:
      return Kind::kDouble;
    case msgpack::type::STR:
    case msgpack::type::BIN:
      return Kind::kBytes;
    case msgpack::type::ARRAY:
      return Kind::kArray;
    case msgpack::type::MAP:
      return Kind::kMap;
    case msgpack::type::EXT:
      return Kind::kPacked;
    default:
      return Kind::kOther;
  }
}

void Reader::Fail(std::string_view why) { impl_->Fail(why); }
bool Reader::failed() const { return !impl_->problem.empty(); }

Status Reader::Finish() {
  if (!impl_->problem.empty())
    return Error{ErrorCode::kCorrupt, "malformed message: " + impl_->problem};
  if (!impl_->root_taken) return Error{ErrorCode::kCorrupt, "malformed message: nothing was read"};
  return Status::Ok();
}

Result<uint8_t> PeekType(std::string_view bytes) {
  // [version, type, ...] of ours starts with fixarray(3) and two small unsigned integers; no full
  // parse is needed.
  if (bytes.size() < 4 || static_cast<uint8_t>(bytes[0]) != 0x93) {
    return Error{ErrorCode::kCorrupt, "malformed message: no envelope"};
  }
  if (static_cast<uint8_t>(bytes[1]) != kWireVersion) {
    return Error{ErrorCode::kCorrupt,
                 "unsupported wire version; use the same release on every machine"};
  }
  const auto first = static_cast<uint8_t>(bytes[2]);
  if (first < 0x80) return first;
  if (first == 0xcc) return static_cast<uint8_t>(bytes[3]);
  return Error{ErrorCode::kCorrupt, "malformed message: bad type"};
}

}  // namespace troupe::wire
