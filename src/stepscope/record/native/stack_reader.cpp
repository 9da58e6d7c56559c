#include "stack_reader.h"

#include <cstddef>
#include <cstring>

#include "line_table.h"
#include "safe_memory.h"

namespace stepscope {

namespace {

constexpr size_t kMostFrames = kMostPieces;
constexpr int64_t kLongestText = 4096, kLongestTable = 1 << 20;
constexpr size_t kWord = sizeof(void*);
constexpr size_t kLargestFrame = 512, kLargestObject = 128;  // of what is read of one

const char* address_of(const void* object) { return static_cast<const char*>(object); }

// What lies at an offset of a copy.
template <class T>
T at(const char* copy, uint32_t offset) {
  T value;
  memcpy(&value, copy + offset, sizeof value);
  return value;
}

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

// A block's header has three words; the first block leaves one more free.
bool begins_block(const char* frame) { return (uintptr_t(frame) - 3 * kWord) % 4096 == 0; }
bool begins_stack(const char* frame) { return (uintptr_t(frame) - 4 * kWord) % 4096 == 0; }

}  // namespace

bool StackReader::has_type(const void* copy, const void* type) const {
  return at<const void*>(address_of(copy), python_.layout.type) == type;
}

// A Python string as UTF-8.
bool StackReader::copy_text(const void* object, std::string& text) const {
  const PythonLayout& layout = python_.layout;
  char header[kLargestObject];
  if (layout.text_ascii > sizeof header || !copy_memory(object, header, layout.text_ascii))
    return false;
  uint32_t state = at<uint32_t>(header, layout.text_state);
  unsigned width = state >> layout.kind_shift & 7;
  bool is_text = has_type(header, python_.text_type) && state & layout.compact_bit &&
                 (width == 1 || width == 2 || width == 4);
  int64_t length = at<int64_t>(header, layout.text_length);
  if (!is_text || length < 0 || length > kLongestText) return false;
  size_t start = state & layout.ascii_bit ? layout.text_ascii : layout.text_other;
  std::string bytes(size_t(length) * width, ' ');
  if (!bytes.empty() && !copy_memory(address_of(object) + start, &bytes[0], bytes.size()))
    return false;
  for (size_t i = 0; i < size_t(length); i++) {
    uint32_t c = character(bytes, i, width);
    if (!c) return false;  // memory that is being written: neither names nor paths hold a zero
    append_utf8(text, c);
  }
  return true;
}

bool StackReader::copy_bytes(const void* object, std::string& bytes) const {
  const PythonLayout& layout = python_.layout;
  char header[kLargestObject];
  if (!copy_memory(object, header, layout.item_count + kWord)) return false;
  int64_t size = at<int64_t>(header, layout.item_count);
  if (!has_type(header, python_.bytes_type) || size < 0 || size > kLongestTable) return false;
  bytes.resize(size_t(size));
  return bytes.empty() ||
         copy_memory(address_of(object) + layout.bytes_start, &bytes[0], bytes.size());
}

Code::Identity StackReader::identity_of(const char* code) const {
  const PythonLayout& layout = python_.layout;
  Code::Identity identity{at<const void*>(code, layout.code_file),
                          at<const void*>(code, layout.code_name),
                          at<const void*>(code, layout.code_lines),
                          at<int>(code, layout.code_first_line), kLongestTable};
  if (keeps_a_stack())
    identity.size = at<int64_t>(code, layout.item_count) * intptr_t(sizeof(uint16_t));
  return identity;
}

size_t StackReader::frame_size(const char* code) const {
  const PythonLayout& layout = python_.layout;
  if (layout.code_frame_size) return size_t(at<int>(code, layout.code_frame_size)) * kWord;
  return layout.frame_locals + kWord * size_t(at<int>(code, layout.code_local_count) +
                                              at<int>(code, layout.code_stack_size));
}

bool StackReader::is_frame(const char* frame) const {
  if (!keeps_a_stack()) return has_type(frame, python_.frame_type);
  char owner = frame[python_.layout.frame_owner];
  return owner >= 0 && owner <= last_owner(python_.layout.version);
}

SampledFrame StackReader::frame_at(const void* address, const char* frame) const {
  const PythonLayout& layout = python_.layout;
  uintptr_t tags = tag_bits(layout.version);
  auto reference = [&](uint32_t offset) {
    return reinterpret_cast<const void*>(at<uintptr_t>(frame, offset) & ~tags);
  };
  SampledFrame found{address, reference(layout.frame_code), reference(layout.frame_locals), 0,
                     keeps_a_stack() && !frame[layout.frame_owner], nullptr};
  if (keeps_a_stack())
    found.offset = intptr_t(at<uintptr_t>(frame, layout.frame_position) - uintptr_t(found.code)) -
                   intptr_t(layout.code_instructions);
  else
    found.offset = intptr_t(at<int>(frame, layout.frame_position)) * 2;
  return found;
}

int StackReader::line_of(const SampledFrame& frame) const {
  const Code& code = *frame.description;
  return line_in_table(code.lines, code.identity.first_line, frame.offset, keeps_a_stack());
}

const void* StackReader::head(const void* state, unsigned long thread_id, bool& is_valid) {
  const PythonLayout& layout = python_.layout;
  unsigned long owner = 0;
  const void* frame = nullptr;
  Piece pieces[] = {{address_of(state) + layout.thread_id, &owner, sizeof owner},
                    {address_of(state) + layout.thread_frame, &frame, sizeof frame}};
  is_valid = copy_pieces(pieces, 2) && owner == thread_id;
  bool is_further = layout.version == 0x030B || layout.version == 0x030C;
  if (is_valid && frame && is_further)
    is_valid = copy_memory(address_of(frame) + layout.inner_frame, &frame, sizeof frame);
  return is_valid ? frame : nullptr;
}

// Frames are close to each other: each page is copied once and then read from the copy.
bool StackReader::copy_frame(const void* from, char* frame) {
  size_t size = python_.layout.frame_locals + kWord;
  uintptr_t address = uintptr_t(from), page = address & ~(kPage - 1);
  if (address % kWord || size > kLargestFrame) return false;
  if (address + size > page + kPage || !keeps_a_stack()) return copy_memory(from, frame, size);
  size_t index = 0;
  while (index < page_addresses_.size() && page_addresses_[index] != page) index++;
  if (index == page_addresses_.size()) {
    if (index == pages_.size()) pages_.emplace_back(new char[kPage]);
    if (!copy_memory(reinterpret_cast<const void*>(page), pages_[index].get(), kPage)) return false;
    page_addresses_.push_back(page);
  }
  memcpy(frame, pages_[index].get() + (address - page), size);
  return true;
}

bool StackReader::follow(const void* innermost, const void* until) {
  frames_.clear();
  page_addresses_.clear();
  has_met_until_ = false;
  const PythonLayout& layout = python_.layout;
  char frame[kLargestFrame];
  size_t steps = 0;
  for (const void* here = innermost; here; steps++) {
    if (here == until) return has_met_until_ = true;
    if (steps == 2 * kMostFrames) return false;  // a cycle
    if (frames_.size() == kMostFrames) return true;
    if (!copy_frame(here, frame) || !is_frame(frame)) return false;
    if (!is_shim_of(layout.version, frame[layout.frame_owner])) frames_.push_back(frame_at(here, frame));
    here = at<const void*>(frame, layout.frame_back);
  }
  return true;
}

// Whether each frame on Python's stack begins where its caller's ends, or at the begin of a block;
// the outermost begins the first block. A generator that has just yielded has no caller.
bool StackReader::is_contiguous(const std::vector<char>& codes) const {
  if (!keeps_a_stack()) return true;
  const char* inner = nullptr;
  for (size_t i = 0; i < frames_.size(); i++) {
    if (!frames_[i].is_on_stack) continue;
    const char* here = address_of(frames_[i].address);
    size_t size = frame_size(&codes[i * python_.layout.code_bytes]);
    if (inner && inner != here + size && !begins_block(inner)) return false;
    inner = here;
  }
  if (!has_met_until_ && frames_.size() < kMostFrames && !frames_.empty())
    return frames_.back().is_on_stack && begins_stack(inner);
  return true;
}

bool StackReader::describe() {
  size_t size = python_.layout.code_bytes;
  std::vector<char> codes(frames_.size() * size);
  std::vector<Piece> pieces;
  for (size_t i = 0; i < frames_.size(); i++)
    pieces.push_back({frames_[i].code, &codes[i * size], size});
  if (!pieces.empty() && !copy_pieces(pieces.data(), int(pieces.size()))) return false;
  for (size_t i = 0; i < frames_.size(); i++) {
    SampledFrame& frame = frames_[i];
    const char* code = &codes[i * size];
    if (!has_type(code, python_.code_type)) return false;
    Code::Identity identity = identity_of(code);
    if (frame.offset < -intptr_t(sizeof(uint16_t)) || frame.offset >= identity.size) return false;
    if (!(frame.description = code_at(frame.code, code))) return false;
  }
  return is_contiguous(codes);
}

std::shared_ptr<Code> StackReader::code_at(const void* address, const char* copy) {
  Code::Identity identity = identity_of(copy);
  auto known = codes_.find(address);
  if (known != codes_.end() && known->second->identity == identity) return known->second;
  auto code = std::make_shared<Code>();
  code->identity = identity;
  if (!copy_text(identity.file, code->file) || !copy_text(identity.name, code->name) ||
      !copy_bytes(identity.lines, code->lines))
    return nullptr;
  if (flags_) code->flags = flags_(code->file, code->name);
  return codes_[address] = code;
}

StackResult StackReader::read_from(const void* innermost, const void* until) {
  if (!python_.layout.version) return StackResult::empty;
  if (codes_.size() > kMostCodes) codes_.clear();
  if (!follow(innermost, until) || !describe()) return StackResult::torn;
  return frames_.empty() ? StackResult::empty : StackResult::complete;
}

StackResult StackReader::read(const void* state, unsigned long thread_id, const void* until) {
  if (!python_.layout.version) return StackResult::empty;
  bool is_valid = false;
  const void* innermost = head(state, thread_id, is_valid);
  if (!is_valid) return StackResult::torn;
  StackResult result = read_from(innermost, until);
  // Frames may be anywhere before 3.11: nothing else shows that one was left meanwhile.
  if (!keeps_a_stack() && head(state, thread_id, is_valid) != innermost) return StackResult::torn;
  return result;
}

}  // namespace stepscope
