#include "native_frames.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <unwind.h>

namespace stepscope {

constexpr int kDeepest = 128;

struct Unwound {
  const void* outermost;  // stack address of the enclosing operator
  const void* python;     // begin of the interpreter's code
  const void* places[kDeepest];
  int depth = 0;
};

// A cache of symbols by address; looking one up in a library of PyTorch's size is slow.
struct Function {
  const void* library = nullptr;
  std::string name, file;
};

static std::string readable(const char* symbol) {
  int status = 0;
  char* plain = abi::__cxa_demangle(symbol, nullptr, nullptr, &status);
  std::string name = plain && status == 0 ? plain : symbol;
  free(plain);
  size_t arguments = name.find('(');
  if (arguments != std::string::npos && arguments > 0 && name.find("(anonymous") != arguments)
    name.resize(arguments);
  return name;
}

static Function look_up(const void* address) {
  Dl_info place{};
  if (!dladdr(address, &place)) return {};
  return {place.dli_fbase, place.dli_sname ? readable(place.dli_sname) : "",
          place.dli_fname ? place.dli_fname : ""};
}

static const Function& function_at(const void* address) {
  static std::mutex mutex;
  static auto* known = new std::unordered_map<const void*, Function>;
  std::lock_guard<std::mutex> lock(mutex);
  auto [place, is_new] = known->try_emplace(address);
  if (is_new) place->second = look_up(address);
  return place->second;  // entries do not move
}

static bool is_bookkeeping(const Function& function, const void* own_library) {
  if (function.library == own_library || function.name.empty()) return true;
  for (const char* part : {"RecordFunction", "record_function", "_Unwind_", "callOp"})
    if (function.name.find(part) != std::string::npos) return true;
  return false;
}

static _Unwind_Reason_Code visit(_Unwind_Context* context, void* argument) {
  auto* unwound = static_cast<Unwound*>(argument);
  auto stack = reinterpret_cast<const void*>(_Unwind_GetCFA(context));
  if (unwound->outermost && stack > unwound->outermost) return _URC_END_OF_STACK;
  auto address = reinterpret_cast<const void*>(_Unwind_GetIP(context) - 1);
  if (function_at(address).library == unwound->python) return _URC_END_OF_STACK;
  unwound->places[unwound->depth++] = address;
  return unwound->depth < kDeepest ? _URC_NO_REASON : _URC_END_OF_STACK;
}

static const void* base_of(const void* address) {
  Dl_info place{};
  return dladdr(address, &place) ? place.dli_fbase : nullptr;
}

void attach_below_native_frames(Thread& thread, Slot* parent, Entry* entry) {
  if (thread.collector.tree.has(parent->node, entry->key)) return;
  static const void* own_library = base_of(reinterpret_cast<const void*>(&attach_below_native_frames));
  Unwound unwound;
  unwound.outermost = thread.top && thread.top->slot == parent ? thread.top->stack : nullptr;
  unwound.python = base_of(reinterpret_cast<const void*>(&PyLong_FromLong));
  _Unwind_Backtrace(visit, &unwound);
  NodeId node = parent->node;
  bool dropped = false;
  for (int i = unwound.depth; i-- > 0;) {
    const Function& function = function_at(unwound.places[i]);
    if (is_bookkeeping(function, own_library)) continue;
    KeyId key = thread.collector.keys.find(Kind::native, function.name, function.file);
    node = thread.collector.tree.child(node, key, dropped);
  }
  thread.collector.tree.child_below(parent->node, node, entry->key, dropped);
}

}  // namespace stepscope
