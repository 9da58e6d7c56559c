#include "places.h"

#include <unistd.h>

#include <algorithm>

namespace stepscope {

constexpr size_t kMostCode = 1u << 17;
// A code object takes about 10 kB with its constants, so that these take 10 MB; chosen: what a program
// generates once, as dataclasses do, fits.
constexpr size_t kMostGenerated = 1u << 10;
constexpr int kMostCopies = 16;  // of one function compiled anew; chosen: reloads, not each step

// Flags of code objects, guarded by the GIL. Each is kept alive, as positions in it identify it; what
// a program compiles without end is not kept, and looked at whenever it runs.
struct KnownCode {
  std::unordered_map<PyCodeObject*, uint8_t> flags;
  std::unordered_map<std::string, int> copies;  // of each function
  size_t generated = 0;                         // functions of no file

  bool keeps(PyCodeObject* code, const std::string& function, bool is_generated) {
    auto copy = copies.find(function);
    if (flags.size() >= kMostCode || (copy != copies.end() && copy->second >= kMostCopies)) return false;
    if (copy == copies.end() && is_generated && generated++ >= kMostGenerated) return false;
    Py_INCREF(code);
    ++copies[function];
    return true;
  }
};
static KnownCode& known_code() {
  static auto* known = new KnownCode;
  return *known;
}
static PyCodeObject* module_call = nullptr;
static PyObject* resolver = nullptr;
static std::vector<std::string>*hidden_names = nullptr, *barrier_files = nullptr,
                               *annotator_files = nullptr;

void set_module_call(PyObject* code, PyObject* function) {
  Py_XINCREF(code);
  Py_XINCREF(function);
  module_call = reinterpret_cast<PyCodeObject*>(code);
  std::swap(resolver, function);
  Py_XDECREF(function);
}

void set_hidden(std::vector<std::string> hidden, std::vector<std::string> barriers,
                std::vector<std::string> annotators) {
  hidden_names = new auto(std::move(hidden));
  barrier_files = new auto(std::move(barriers));
  annotator_files = new auto(std::move(annotators));
}

// -- with the GIL

struct Python {
  PyGILState_STATE state = PyGILState_Ensure();
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
  Python() { PyErr_Fetch(&type, &value, &traceback); }
  ~Python() {
    PyErr_Restore(type, value, traceback);
    PyGILState_Release(state);
  }
};

std::string text_of(PyObject* object) {
  PyObject* bytes = object ? PyUnicode_AsEncodedString(object, "utf-8", "replace") : nullptr;
  if (!bytes) PyErr_Clear();
  std::string text = bytes ? PyBytes_AS_STRING(bytes) : "?";
  Py_XDECREF(bytes);
  return text;
}

static bool ends_with(const std::vector<std::string>* endings, const std::string& text) {
  if (!endings) return false;
  return std::any_of(endings->begin(), endings->end(), [&](const std::string& ending) {
    return text.size() >= ending.size() &&
           !text.compare(text.size() - ending.size(), ending.size(), ending);
  });
}

// Matches a frame (`file:name`), a file, or a part of the file's path (`*folder/`).
static bool is_hidden(const std::string& file, const std::string& name) {
  if (ends_with(hidden_names, file + ":" + name) || ends_with(hidden_names, file)) return true;
  return hidden_names && std::any_of(hidden_names->begin(), hidden_names->end(), [&](auto& part) {
    return part[0] == '*' && file.find(part.substr(1)) != std::string::npos;
  });
}

uint8_t frame_flags(const std::string& file, const std::string& name) {
  return (is_hidden(file, name) ? kHidden : 0) | (ends_with(barrier_files, file) ? kBarrier : 0) |
         (ends_with(annotator_files, file) ? kAnnotator : 0);
}

static bool is_generated(const std::string& file) { return file[0] == '<' || access(file.c_str(), F_OK); }

static PlaceKey describe(Collector& collector, Frame* frame, uintptr_t position) {
  Python python;
  PyCodeObject* code = code_of(frame);
  if (!PyCode_Check(code)) return {kNoKey, kHidden};
#if PY_VERSION_HEX >= 0x030B0000
  std::string name = text_of(code->co_qualname);
#else
  std::string name = text_of(code->co_name);
#endif
  std::string file = text_of(code->co_filename);
  KnownCode& all = known_code();
  auto known = all.flags.find(code);
  uint8_t flags = known == all.flags.end() ? frame_flags(file, name) : known->second;
  if (known == all.flags.end()) {
    std::string function = file + ":" + std::to_string(code->co_firstlineno) + ":" + name;
    if (all.keeps(code, function, is_generated(file))) all.flags.emplace(code, flags);
    else if (all.copies.count(function)) flags |= kPassing;
    else return {collector.keys.find(Kind::python, "(others)"), uint8_t(flags | kPassing)};
  }
  int line = std::max(line_of(code, position), 0);
  return {collector.keys.find(Kind::python, name, file, uint32_t(line)), flags};
}

static KeyId ask_for_module(Thread& thread, PyObject* module, KeyId inside) {
  Python python;
  thread.is_busy = true;
  PyObject* answer = PyObject_CallFunction(resolver, "OI", module, unsigned(inside));
  KeyId key = kNoKey;
  if (answer && PyLong_Check(answer)) key = KeyId(PyLong_AsUnsignedLong(answer));
  if (!answer) PyErr_Clear();
  Py_XDECREF(answer);
  thread.is_busy = false;
  return key;
}

// -- without the GIL

static PlaceKey place_of(Thread& thread, Frame* frame, uintptr_t position) {
  if (PlaceKey* known = thread.places.find(position)) return *known;
  PlaceKey place = describe(thread.collector, frame, position);
  if (!(place.flags & kPassing) && thread.places.size() < 4 * kMostCode) thread.places.put(position, place);
  return place;
}

uint64_t call_of(const void* module, KeyId inside) {
  return (reinterpret_cast<uint64_t>(module) * 0x9E3779B97F4A7C15ull) ^ inside;
}

bool is_module_call(const void* code) { return module_call && code == module_call; }

void learn_frames(Thread& thread) {
  for (Frame* frame = innermost(); frame; frame = outer(frame))
    place_of(thread, frame, position_of(frame));
}

static KeyId module_key(Thread& thread, PyObject* module, KeyId inside) {
  uint64_t call = call_of(module, inside);
  if (KeyId* known = thread.modules.find(call)) return *known;
  uint32_t age = thread.collector.module_age.load();
  KeyId key = ask_for_module(thread, module, inside);
  if (age == thread.collector.module_age.load() && thread.modules.size() < kMostCode) {
    thread.modules.put(call, key);
    if (key != kNoKey) thread.collector.remember_module(module, inside, key, age);
  }
  return key;
}

static void forget_dead_modules(Thread& thread) {
  uint32_t age = thread.collector.module_age.load(std::memory_order_relaxed);
  if (age == thread.module_age) return;
  thread.module_age = age;
  thread.modules.clear();
  thread.path.clear();
}

constexpr int kDeepest = 512;
struct Seen {
  Frame* frame;
  uintptr_t position;
};

static Place enter_frame(Thread& thread, const Seen& seen, const Place& above) {
  PyObject* module = nullptr;
  if (is_module_call(code_of(seen.frame)) && resolver &&
      thread.collector.options.sources & kModules) {
    module = first_argument(seen.frame);
    KeyId key = module ? module_key(thread, module, above.inside) : kNoKey;
    Slot* slot = key == kNoKey ? above.slot : thread.child(above.slot, key);
    return {seen.position, module, slot, key == kNoKey ? above.inside : key};
  }
  PlaceKey place = place_of(thread, seen.frame, seen.position);
  uintptr_t position = place.flags & kPassing ? 0 : seen.position;  // another code may get its memory
  if (place.flags & kHidden || place.key == kNoKey)
    return {position, nullptr, above.slot, above.inside};
  return {position, nullptr, thread.child(above.slot, place.key), above.inside};
}

static bool is_same(const Place& place, const Seen& seen) {
  return place.position == seen.position &&
         (!place.module || place.module == first_argument(seen.frame));
}

// The number of outermost frames that are runners.
static int count_below_program(Thread& thread, const Seen* seen, int depth) {
  for (int i = 0; i < depth; i++)
    if (place_of(thread, seen[i].frame, seen[i].position).flags & kBarrier) return depth - i;
  return 0;
}

// The context below `base` for the frames `seen`, innermost first.
static Slot* descend(Thread& thread, Slot* base, KeyId inside, const Seen* seen, int depth) {
  forget_dead_modules(thread);
  auto& path = thread.path;
  if (thread.base != base) {
    thread.base = base;
    path.clear();
  }
  int same = 0;
  while (same < depth && same < int(path.size()) && is_same(path[size_t(same)], seen[depth - 1 - same]))
    same++;
  if (same < depth) path.resize(size_t(same));
  Place above = same ? path[size_t(same) - 1] : Place{0, nullptr, base, inside};
  int runners = same ? 0 : count_below_program(thread, seen, depth);
  for (; same < runners; same++) path.push_back({seen[depth - 1 - same].position, nullptr, base, inside});
  for (; same < depth; same++) {
    above = enter_frame(thread, seen[depth - 1 - same], above);
    path.push_back(above);
  }
  thread.inside = above.inside;
  return above.slot;
}

static int collect(Frame* frame, Frame* until, Seen* seen, bool& found) {
  int depth = 0;
  while (frame && frame != until && depth < kDeepest) {
    seen[depth++] = {frame, position_of(frame)};
    frame = outer(frame);
  }
  found = frame == until;
  return depth;
}

static bool is_same_line(Thread& thread, uintptr_t left, uintptr_t right) {
  if (left == right) return true;
  PlaceKey *first = thread.places.find(left), *second = thread.places.find(right);
  return first && second && first->key == second->key;
}

static Slot* below_annotation(Thread& thread, Entry* top, Frame* frame) {
  Seen seen[kDeepest];
  int depth = 0;
  for (Frame* f = frame; f && depth < kDeepest; f = outer(f)) {
    seen[depth++] = {f, position_of(f)};
    for (int i = 0; i < kAnchors && top->anchors[i].frame; i++) {
      if (top->anchors[i].frame != f) continue;
      if (!i && is_same_line(thread, top->anchors[i].position, position_of(f))) depth--;
      return descend(thread, top->slot, top->inside, seen, depth);
    }
  }
  return parent_slot(thread, top->below, frame);  // the opening frame returned without closing it
}

static Slot* parent_of(Thread& thread, Entry* top, Frame* frame) {
  if (top && (!frame || (frame == top->frame && !top->is_annotation))) {
    thread.inside = top->inside;
    return top->slot;
  }
  if (top && top->is_annotation && top->anchors[0].frame)
    return below_annotation(thread, top, frame);
  Seen seen[kDeepest];
  bool found;
  int depth = collect(frame, top ? top->frame : nullptr, seen, found);
  if (top && !found) return top->slot;
  return descend(thread, top ? top->slot : thread.root_slot, top ? top->inside : kNoKey, seen, depth);
}

Slot* parent_slot(Thread& thread, Entry* top, Frame* frame) { return parent_of(thread, top, frame); }

void anchor(Thread& thread, Entry* entry) {
  Frame* frame = entry->frame;
  while (frame && place_of(thread, frame, position_of(frame)).flags & kAnnotator)
    frame = outer(frame);
  entry->frame = frame;
  for (int i = 0; i < kAnchors; i++, frame = frame ? outer(frame) : nullptr)
    entry->anchors[i] = {frame, frame ? position_of(frame) : 0};
}

// -- names

constexpr uint32_t kMostOfAPattern = 64;

bool is_of_compiler(const std::string& name) {
  return !name.rfind("Torch-Compiled Region: ", 0) || !name.rfind("torch.compile ", 0) ||
         name == "TorchDynamo Cache Lookup";
}

std::string plain_name(Collector& collector, const std::string& name, Kind kind) {
  if (kind != Kind::annotation && name.rfind("## Call CompiledFxGraph ", 0)) return name;
  if (is_of_compiler(name)) return name;
  std::string pattern;
  bool ends_in_number = false;
  for (char c : name) {
    bool digit = c >= '0' && c <= '9';
    if (!digit) pattern += c;
    else if (pattern.empty() || pattern.back() != '#') pattern += '#';
    ends_in_number = digit;
  }
  if (pattern.find('#') == std::string::npos) return name;
  size_t mark = name.find_last_not_of("0123456789");
  if (ends_in_number && mark != std::string::npos && name[mark] == '#') return pattern;
  std::lock_guard<std::mutex> lock(collector.mutex);
  return ++collector.patterns[pattern] > kMostOfAPattern ? pattern : name;
}

}  // namespace stepscope
