#include "stack_reader.h"

#include <cstddef>
#include <cstring>
#include <type_traits>

#include "places.h"
#include "safe_memory.h"

namespace stepscope {

#if defined(STEPSCOPE_NO_FRAMES)

StackResult StackReader::read(const PyThreadState*, unsigned long, const void*) {
  return StackResult::empty;
}
StackResult StackReader::read_from(const void*, const void*) { return StackResult::empty; }

#else

namespace {

constexpr size_t kMostFrames = kMostPieces;
constexpr Py_ssize_t kLongestText = 4096, kLongestTable = 1 << 20;

const char* address_of(const void* object) { return static_cast<const char*>(object); }

void append_utf8(std::string& text, uint32_t c) {
  if (c < 0x80) {
    text += char(c);
  } else if (c < 0x800) {
    text += char(0xC0 | c >> 6);
    text += char(0x80 | (c & 63));
  } else if (c < 0x10000) {
    text += char(0xE0 | c >> 12);
    text += char(0x80 | (c >> 6 & 63));
    text += char(0x80 | (c & 63));
  } else {
    text += char(0xF0 | (c >> 18 & 7));
    text += char(0x80 | (c >> 12 & 63));
    text += char(0x80 | (c >> 6 & 63));
    text += char(0x80 | (c & 63));
  }
}

uint32_t character(const std::string& bytes, size_t index, unsigned width) {
  uint32_t c = 0;
  memcpy(&c, bytes.data() + index * width, width);
  return c >= 0xD800 && c < 0xE000 ? '?' : c;
}

// A Python string as UTF-8.
bool copy_text(const void* object, std::string& text) {
  PyASCIIObject header;
  if (!copy_memory(object, &header, sizeof header)) return false;
  unsigned width = header.state.kind;
  bool is_text = Py_TYPE(reinterpret_cast<PyObject*>(&header)) == &PyUnicode_Type &&
                 header.state.compact && (width == 1 || width == 2 || width == 4);
  if (!is_text || header.length < 0 || header.length > kLongestText) return false;
  size_t start = header.state.ascii ? sizeof(PyASCIIObject) : sizeof(PyCompactUnicodeObject);
  std::string bytes(size_t(header.length) * width, ' ');
  if (!bytes.empty() && !copy_memory(address_of(object) + start, bytes.data(), bytes.size()))
    return false;
  for (size_t i = 0; i < size_t(header.length); i++) append_utf8(text, character(bytes, i, width));
  return true;
}

bool copy_bytes(const void* object, std::string& bytes) {
  PyVarObject header;
  if (!copy_memory(object, &header, sizeof header)) return false;
  if (Py_TYPE(&header) != &PyBytes_Type || header.ob_size < 0 || header.ob_size > kLongestTable)
    return false;
  bytes.resize(size_t(header.ob_size));
  return bytes.empty() ||
         copy_memory(address_of(object) + offsetof(PyBytesObject, ob_sval), bytes.data(), bytes.size());
}

Code::Identity identity_of(const PyCodeObject& code) {
#if PY_VERSION_HEX >= 0x030B0000
  return {code.co_filename, code.co_qualname, code.co_linetable, code.co_firstlineno,
          code.ob_base.ob_size * intptr_t(sizeof(uint16_t))};
#else
  return {code.co_filename, code.co_name, code.co_linetable, code.co_firstlineno, kLongestTable};
#endif
}

bool is_code(const PyCodeObject& copy) {
  return Py_TYPE(reinterpret_cast<const PyObject*>(&copy)) == &PyCode_Type;
}

#if PY_VERSION_HEX >= 0x030C0000
size_t frame_size(const PyCodeObject& code) { return size_t(code.co_framesize) * sizeof(void*); }
#elif PY_VERSION_HEX >= 0x030B0000
size_t frame_size(const PyCodeObject& code) {
  return offsetof(Frame, locals_and_stack) +
         size_t(code.co_nlocalsplus + code.co_stacksize) * sizeof(void*);
}
#endif

#if PY_VERSION_HEX >= 0x030B0000
// A block's header has three words; the first block leaves one more free.
bool begins_block(const char* frame) { return (uintptr_t(frame) - 3 * sizeof(void*)) % 4096 == 0; }
bool begins_stack(const char* frame) { return (uintptr_t(frame) - 4 * sizeof(void*)) % 4096 == 0; }
#endif

const void* code_in(const Frame& frame) {
#if PY_VERSION_HEX >= 0x030B0000
  return without_tag(frame.executable);
#else
  return frame.f_code;
#endif
}

intptr_t offset_in(const Frame& frame) {
#if PY_VERSION_HEX >= 0x030B0000
  return intptr_t(address_of(frame.position) - address_of(code_in(frame))) -
         intptr_t(offsetof(PyCodeObject, co_code_adaptive));
#else
  return intptr_t(frame.f_lasti) * 2;
#endif
}

bool is_on_stack(const Frame& frame) {
#if PY_VERSION_HEX >= 0x030B0000
  return !frame.owner;
#else
  return false;
#endif
}

bool is_frame(const Frame& frame) {
#if PY_VERSION_HEX >= 0x030B0000
  return frame.owner >= 0 && frame.owner <= kLastOwner;
#else
  return Py_TYPE(reinterpret_cast<const PyObject*>(&frame)) == &PyFrame_Type;
#endif
}

}  // namespace

const void* StackReader::head(const PyThreadState* state, unsigned long thread_id, bool& is_valid) {
  unsigned long owner = 0;
  const void* frame = nullptr;
#if PY_VERSION_HEX >= 0x030D0000
  const void* place = &state->current_frame;
#elif PY_VERSION_HEX >= 0x030B0000
  const void* place = &state->cframe;
#else
  const void* place = &state->frame;
#endif
  Piece pieces[] = {{&state->thread_id, &owner, sizeof owner}, {place, &frame, sizeof frame}};
  is_valid = copy_pieces(pieces, 2) && owner == thread_id;
#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030D0000
  if (is_valid && frame) {
    const char* current = address_of(frame) + offsetof(_PyCFrame, current_frame);
    is_valid = copy_memory(current, &frame, sizeof frame);
  }
#endif
  return is_valid ? frame : nullptr;
}

// Frames are close to each other: each page is copied once and then read from the copy.
bool StackReader::copy_frame(const void* from, Frame& frame) {
  uintptr_t address = uintptr_t(from), page = address & ~(kPage - 1);
  if (address % alignof(Frame)) return false;
  if (address + sizeof frame > page + kPage || PY_VERSION_HEX < 0x030B0000)
    return copy_memory(from, &frame, sizeof frame);
  size_t index = 0;
  while (index < page_addresses_.size() && page_addresses_[index] != page) index++;
  if (index == page_addresses_.size()) {
    if (index == pages_.size()) pages_.emplace_back(new char[kPage]);
    if (!copy_memory(reinterpret_cast<const void*>(page), pages_[index].get(), kPage)) return false;
    page_addresses_.push_back(page);
  }
  memcpy(&frame, pages_[index].get() + (address - page), sizeof frame);
  return true;
}

bool StackReader::follow(const void* innermost, const void* until) {
  frames_.clear();
  page_addresses_.clear();
  has_met_until_ = false;
  size_t steps = 0;
  for (const void* at = innermost; at; steps++) {
    if (at == until) return has_met_until_ = true;
    if (steps == 2 * kMostFrames) return false;  // a cycle
    if (frames_.size() == kMostFrames) return true;
    alignas(Frame) char memory[sizeof(Frame)];
    Frame& frame = *reinterpret_cast<Frame*>(memory);
    if (!copy_frame(at, frame) || !is_frame(frame)) return false;
    if (!is_shim(&frame))
      frames_.push_back({at, code_in(frame), first_argument(&frame), offset_in(frame),
                         is_on_stack(frame), nullptr});
    at = back(&frame);
  }
  return true;
}

// Whether each frame on Python's stack begins where its caller's ends, or at the begin of a block;
// the outermost begins the first block. A generator that has just yielded has no caller.
bool StackReader::is_contiguous(const std::vector<PyCodeObject>& codes) const {
#if PY_VERSION_HEX >= 0x030B0000
  const char* inner = nullptr;
  for (size_t i = 0; i < frames_.size(); i++) {
    if (!frames_[i].is_on_stack) continue;
    const char* here = address_of(frames_[i].address);
    if (inner && inner != here + frame_size(codes[i]) && !begins_block(inner)) return false;
    inner = here;
  }
  if (!has_met_until_ && frames_.size() < kMostFrames && !frames_.empty())
    return frames_.back().is_on_stack && begins_stack(inner);
#endif
  return true;
}

bool StackReader::describe() {
  static_assert(std::is_trivially_copyable_v<PyCodeObject>);
  std::vector<PyCodeObject> codes(frames_.size());
  std::vector<Piece> pieces;
  for (size_t i = 0; i < frames_.size(); i++)
    pieces.push_back({frames_[i].code, &codes[i], sizeof(PyCodeObject)});
  if (!pieces.empty() && !copy_pieces(pieces.data(), int(pieces.size()))) return false;
  for (size_t i = 0; i < frames_.size(); i++) {
    SampledFrame& frame = frames_[i];
    if (!is_code(codes[i])) return false;
    Code::Identity identity = identity_of(codes[i]);
    if (frame.offset < -intptr_t(sizeof(uint16_t)) || frame.offset >= identity.size) return false;
    if (!(frame.description = code_at(frame.code, codes[i]))) return false;
  }
  return is_contiguous(codes);
}

std::shared_ptr<Code> StackReader::code_at(const void* address, const PyCodeObject& copy) {
  Code::Identity identity = identity_of(copy);
  auto known = codes_.find(address);
  if (known != codes_.end() && known->second->identity == identity) return known->second;
  auto code = std::make_shared<Code>();
  code->identity = identity;
  if (!copy_text(identity.file, code->file) || !copy_text(identity.name, code->name) ||
      !copy_bytes(identity.lines, code->lines))
    return nullptr;
  code->flags = frame_flags(code->file, code->name);
  return codes_[address] = code;
}

StackResult StackReader::read_from(const void* innermost, const void* until) {
  if (codes_.size() > kMostCodes) codes_.clear();
  if (!follow(innermost, until) || !describe()) return StackResult::torn;
  return frames_.empty() ? StackResult::empty : StackResult::complete;
}

StackResult StackReader::read(const PyThreadState* state, unsigned long thread_id,
                              const void* until) {
  bool is_valid = false;
  const void* innermost = head(state, thread_id, is_valid);
  if (!is_valid) return StackResult::torn;
  StackResult result = read_from(innermost, until);
#if PY_VERSION_HEX < 0x030B0000
  // Frames may be anywhere: nothing else shows that one was left meanwhile.
  if (head(state, thread_id, is_valid) != innermost) return StackResult::torn;
#endif
  return result;
}

#endif

}  // namespace stepscope
