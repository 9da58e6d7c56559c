// How calls are followed: the slots through which other libraries call a function lead to a stub,
// which tells of the call and makes it. Libraries that are loaded later get the stubs too, as dlopen
// is followed in the same way; so is dlsym, for those that look the function up.
#include "library_calls.h"

#include <dlfcn.h>
#include <fnmatch.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "collector.h"
#include "device.h"
#include "link_slots.h"

namespace stepscope {
namespace {

constexpr uint32_t kStubs = 256;
constexpr uint32_t kInRegisters = 6;  // whole numbers and pointers in registers (System V, x86-64)

// What a stub has saved of a call; its code below has the same offsets.
struct StubFrame {
  uint64_t integers[kInRegisters];
  uint64_t vectors[16];
  uint64_t variadic, chain;  // rax and r10
  uint64_t index;
  uint64_t function;  // to call
  uint64_t is_told;
  uint64_t unused;
  uint64_t frame_pointer, return_address;
  uint64_t stack[];
};
static_assert(offsetof(StubFrame, variadic) == 176 && offsetof(StubFrame, index) == 192);
static_assert(offsetof(StubFrame, function) == 200 && offsetof(StubFrame, frame_pointer) == 224);

struct NamedArgument {
  std::string name;
  uint32_t position;
  uint32_t bits;
  bool is_signed;
  bool operator==(const NamedArgument&) const = default;
};
struct NamedFunction {
  std::string library, name;
  std::string kind;  // what it does: launch, copy, synchronize, allocate, release, other
  std::vector<NamedArgument> arguments;
  bool operator==(const NamedFunction&) const = default;
};

struct Followed {
  const NamedFunction named;
  std::string file;  // the library's
  uintptr_t stub = 0;
  std::atomic<uintptr_t> real{0};  // 0: its library is not loaded
  std::atomic<bool> is_on{false};
};

std::mutex mutex;  // guards what follows; never waited for within the dynamic linker
Followed* all[kStubs];
std::atomic<uint32_t> count{0};
std::set<std::pair<uintptr_t, std::string>> visited;  // objects whose slots lead to stubs
LoadCounts seen;
std::atomic<bool> is_following{false};

}  // namespace
}  // namespace stepscope

#if defined(__x86_64__)
extern "C" {
__attribute__((visibility("hidden"))) extern char stepscope_stubs[], stepscope_dlsym_stub[],
    stepscope_dlopen_stub[];
__attribute__((visibility("hidden"))) void* (*stepscope_dlsym)(void*, const char*) = dlsym;
__attribute__((visibility("hidden"))) void* (*stepscope_dlopen)(const char*, int) = dlopen;
}

// A stub calls with a copy of 32 words of the caller's stack, so that debuggers, exceptions and other
// profilers see an ordinary frame. The stubs of dlsym and dlopen, which look at who calls them, jump.
__asm__(R"(
  .text
  .p2align 4
  .globl stepscope_stubs
  .hidden stepscope_stubs
stepscope_stubs:
  .cfi_startproc
  .set stepscope_index, 0
  .rept 256
  .p2align 4
  endbr64
  movl $stepscope_index, %r11d
  jmp stepscope_common_stub
  .set stepscope_index, stepscope_index + 1
  .endr
  .p2align 4
stepscope_common_stub:
  pushq %rbp
  .cfi_def_cfa_offset 16
  .cfi_offset %rbp, -16
  movq %rsp, %rbp
  .cfi_def_cfa_register %rbp
  subq $224, %rsp
  movq %rdi, 0(%rsp)
  movq %rsi, 8(%rsp)
  movq %rdx, 16(%rsp)
  movq %rcx, 24(%rsp)
  movq %r8, 32(%rsp)
  movq %r9, 40(%rsp)
  movups %xmm0, 48(%rsp)
  movups %xmm1, 64(%rsp)
  movups %xmm2, 80(%rsp)
  movups %xmm3, 96(%rsp)
  movups %xmm4, 112(%rsp)
  movups %xmm5, 128(%rsp)
  movups %xmm6, 144(%rsp)
  movups %xmm7, 160(%rsp)
  movq %rax, 176(%rsp)
  movq %r10, 184(%rsp)
  movq %r11, 192(%rsp)
  movq %rsp, %rdi
  call stepscope_call_begins
  subq $256, %rsp
  leaq 16(%rbp), %rsi
  movq %rsp, %rdi
  movl $32, %ecx
  rep movsq
  movq -224(%rbp), %rdi
  movq -216(%rbp), %rsi
  movq -208(%rbp), %rdx
  movq -200(%rbp), %rcx
  movq -192(%rbp), %r8
  movq -184(%rbp), %r9
  movups -176(%rbp), %xmm0
  movups -160(%rbp), %xmm1
  movups -144(%rbp), %xmm2
  movups -128(%rbp), %xmm3
  movups -112(%rbp), %xmm4
  movups -96(%rbp), %xmm5
  movups -80(%rbp), %xmm6
  movups -64(%rbp), %xmm7
  movq -48(%rbp), %rax
  movq -40(%rbp), %r10
  call *-24(%rbp)
  leaq -224(%rbp), %rsp
  movq %rax, 0(%rsp)
  movq %rdx, 8(%rsp)
  movups %xmm0, 48(%rsp)
  movups %xmm1, 64(%rsp)
  movq %rsp, %rdi
  call stepscope_call_ends
  movq 0(%rsp), %rax
  movq 8(%rsp), %rdx
  movups 48(%rsp), %xmm0
  movups 64(%rsp), %xmm1
  leave
  .cfi_def_cfa %rsp, 8
  ret
  .cfi_endproc

  .macro stepscope_lookup_stub name, find, real
  .globl \name
  .hidden \name
  .p2align 4
\name:
  .cfi_startproc
  endbr64
  movq (%rsp), %rdx
  pushq %rdi
  .cfi_adjust_cfa_offset 8
  pushq %rsi
  .cfi_adjust_cfa_offset 8
  subq $24, %rsp
  .cfi_adjust_cfa_offset 24
  movq $0, 8(%rsp)
  leaq 8(%rsp), %rcx
  call \find
  movq 8(%rsp), %rdx
  addq $24, %rsp
  .cfi_adjust_cfa_offset -24
  popq %rsi
  .cfi_adjust_cfa_offset -8
  popq %rdi
  .cfi_adjust_cfa_offset -8
  testq %rdx, %rdx
  jne 1f
  movq \real(%rip), %rax
  jmp *%rax
1:
  ret
  .cfi_endproc
  .endm
  stepscope_lookup_stub stepscope_dlsym_stub, stepscope_find_symbol, stepscope_dlsym
  stepscope_lookup_stub stepscope_dlopen_stub, stepscope_open_library, stepscope_dlopen
  .purgem stepscope_lookup_stub
)");
#endif

namespace stepscope {
namespace {

// -- slots

struct Hook {
  uintptr_t real, stub;
};

uintptr_t number_of(const void* address) { return reinterpret_cast<uintptr_t>(address); }

std::multimap<std::string, Hook> hooks() {
  std::multimap<std::string, Hook> found;
#if defined(__x86_64__)
  found.insert({"dlsym", {number_of(reinterpret_cast<void*>(stepscope_dlsym)),
                          number_of(stepscope_dlsym_stub)}});
  found.insert({"dlopen", {number_of(reinterpret_cast<void*>(stepscope_dlopen)),
                           number_of(stepscope_dlopen_stub)}});
#endif
  for (uint32_t i = 0; i < count; i++)
    if (all[i]->is_on && all[i]->real) found.insert({all[i]->named.name, {all[i]->real, all[i]->stub}});
  return found;
}

bool is_inside(const LoadedObject& object, uintptr_t address) {
  return address >= object.begin && address < object.end;
}

// Whether calls through this slot reach `real`; a lazy one leads into its own object before its first.
bool leads_to(const LoadedObject& object, const Held& held, const LinkSlot& slot, uintptr_t real) {
  uintptr_t value = *slot.address;
  if (!slot.may_be_lazy || !is_inside(object, value)) return value == real;
  return number_of(dlsym(held.handle(), slot.name)) == real;
}

void follow(const LoadedObject& object, const std::multimap<std::string, Hook>& hooks) {
  Held held(object);
  if (!held.handle()) return;  // unloaded meanwhile
  each_slot(object, [&](const LinkSlot& slot) {
    auto [first, last] = hooks.equal_range(slot.name);
    for (auto hook = first; hook != last; hook++) {
      auto [real, stub] = hook->second;
      if (*slot.address == stub || is_inside(object, real) || !leads_to(object, held, slot, real))
        continue;
      if (!write_slot(object, slot.address, stub))
        add_note("calls are not followed from everywhere: the system keeps " + object.path +
                 " read-only");
    }
  });
}

void unfollow(const LoadedObject& object, const std::multimap<std::string, Hook>& hooks) {
  Held held(object);
  if (!held.handle()) return;
  each_slot(object, [&](const LinkSlot& slot) {
    auto [first, last] = hooks.equal_range(slot.name);
    for (auto hook = first; hook != last; hook++)
      if (*slot.address == hook->second.stub) write_slot(object, slot.address, hook->second.real);
  });
}

std::string file_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

// Finds functions whose library is loaded now; true if there is a new one.
bool find_functions(const std::vector<LoadedObject>& objects) {
  bool is_new = false;
  for (uint32_t i = 0; i < count; i++) {
    Followed& one = *all[i];
    for (auto object = objects.begin(); one.is_on && !one.real && object != objects.end(); object++) {
      std::string file = file_name(object->path);
      if (fnmatch(one.named.library.c_str(), file.c_str(), 0)) continue;
      Held held(*object);
      void* found = held.handle() ? dlsym(held.handle(), one.named.name.c_str()) : nullptr;
      if (!found || !is_inside(*object, number_of(found))) continue;
      held.keep();  // a caller may hold the stub's address, and call
      one.file = file;
      one.real = number_of(found);
      is_new = true;
    }
  }
  return is_new;
}

// Lets the slots of new libraries lead to the stubs.
void follow_new() {
  LoadCounts now = load_counts();
  if (now == seen) return;
  if (now.unloaded != seen.unloaded) visited.clear();  // their addresses may be others' now
  seen = now;
  std::vector<LoadedObject> objects = loaded_objects();
  if (find_functions(objects)) visited.clear();
  auto wanted = hooks();
  for (const LoadedObject& object : objects)
    if (!is_inside(object, number_of(&count)) && visited.emplace(object.base, object.path).second)
      follow(object, wanted);
}

void follow_new_if_free() {
  std::unique_lock<std::mutex> lock(mutex, std::try_to_lock);
  if (lock && is_following) follow_new();
}

// -- calls

uint64_t value_of(const StubFrame& call, const NamedArgument& argument) {
  uint64_t value = argument.position < kInRegisters ? call.integers[argument.position]
                                                    : call.stack[argument.position - kInRegisters];
  return argument.bits == 32 ? uint32_t(value) : value;
}

std::string value_text(const StubFrame& call, const NamedArgument& argument) {
  uint64_t value = value_of(call, argument);
  if (!argument.is_signed) return std::to_string(value);
  return std::to_string(argument.bits == 32 ? int64_t(int32_t(uint32_t(value))) : int64_t(value));
}

std::string arguments_of(const char*, const void* parameters) {
  auto& call = *static_cast<const StubFrame*>(parameters);
  const NamedFunction& named = all[call.index]->named;
  std::string text = "{\"call\":\"" + named.kind + "\"";
  for (const NamedArgument& argument : named.arguments)
    text += ",\"" + argument.name + "\":" + value_text(call, argument);
  return text + "}";
}

void count_bytes(const StubFrame& call, const NamedFunction& named) {
  if (named.kind != "allocate" && named.kind != "release") return;
  Thread* thread = this_thread();
  Slot* slot = current_slot(thread);
  for (const NamedArgument& argument : named.arguments)
    if (slot && argument.name == "bytes")
      add_extra(*thread, named.kind == "allocate" ? Metric::allocated : Metric::freed, slot->node,
                value_of(call, argument));
}

// The reason if they cannot be followed.
std::string follow_functions(const std::vector<NamedFunction>& functions) {
#if !defined(__x86_64__)
  return functions.empty() ? "" : "this needs an x86-64 processor";
#endif
  std::lock_guard<std::mutex> lock(mutex);
  for (const NamedFunction& named : functions) {
    Followed* known = nullptr;
    for (uint32_t i = 0; i < count; i++)
      if (all[i]->named == named) known = all[i];
    if (!known && count == kStubs) return "this process has followed 256 functions";
    if (!known) {
      known = all[count] = new Followed{named};
#if defined(__x86_64__)
      known->stub = number_of(stepscope_stubs) + 16 * count;
#endif
      count++;
    }
    known->is_on = true;
  }
  is_following = true;
  seen = {};
  follow_new();
  return "";
}

// The libraries call each other directly again.
void unfollow_functions() {
  std::lock_guard<std::mutex> lock(mutex);
  if (!is_following) return;
  is_following = false;
  auto wanted = hooks();
  for (const LoadedObject& object : loaded_objects())
    if (!is_inside(object, number_of(&count))) unfollow(object, wanted);
  for (uint32_t i = 0; i < count; i++) all[i]->is_on = false;
  visited.clear();
}

bool read_argument(PyObject* item, NamedFunction& function) {
  const char* name;
  NamedArgument argument;
  int is_signed = 0;
  if (!PyArg_ParseTuple(item, "sIIp", &name, &argument.position, &argument.bits, &is_signed))
    return false;
  argument.name = name;
  argument.is_signed = is_signed;
  function.arguments.push_back(argument);
  return true;
}

bool read_function(PyObject* item, NamedFunction& function) {
  const char *library, *name, *kind;
  PyObject* arguments;
  if (!PyArg_ParseTuple(item, "sssO!", &library, &name, &kind, &PyTuple_Type, &arguments))
    return false;
  function.library = library;
  function.name = name;
  function.kind = kind;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(arguments); i++)
    if (!read_argument(PyTuple_GET_ITEM(arguments, i), function)) return false;
  return true;
}

}  // namespace

PyObject* follow_libraries(PyObject*, PyObject* wanted) {
  if (!PyTuple_Check(wanted)) return PyErr_Format(PyExc_TypeError, "expected a tuple of functions");
  std::vector<NamedFunction> functions{size_t(PyTuple_GET_SIZE(wanted))};
  for (size_t i = 0; i < functions.size(); i++)
    if (!read_function(PyTuple_GET_ITEM(wanted, Py_ssize_t(i)), functions[i])) return nullptr;
  std::string problem;
  Py_BEGIN_ALLOW_THREADS;  // a thread that loads a library may need the GIL
  if (functions.empty()) unfollow_functions();
  else problem = follow_functions(functions);
  Py_END_ALLOW_THREADS;
  return PyUnicode_FromString(problem.c_str());
}

}  // namespace stepscope

#if defined(__x86_64__)
extern "C" {

using namespace stepscope;

__attribute__((visibility("hidden"))) void stepscope_call_begins(StubFrame* call) {
  int error = errno;
  Followed& one = *all[call->index];
  call->function = one.real;
  call->is_told = one.is_on;
  Collector* collector = active.load();
  if (collector && call->is_told) {
    KeyId key = collector->keys.find(Kind::runtime, one.named.name, one.file, 0, one.named.kind);
    call_begins(one.named.name.c_str(), 0, &arguments_of, call, key);
    count_bytes(*call, one.named);
  } else {
    call->is_told = false;
  }
  errno = error;
}

__attribute__((visibility("hidden"))) void stepscope_call_ends(StubFrame* call) {
  int error = errno;
  if (call->is_told) call_ends(all[call->index]->named.name.c_str());
  errno = error;
}

// The stub of a function that is looked up; `is_done` stays 0 if dlsym is to answer.
__attribute__((visibility("hidden"))) void* stepscope_find_symbol(void* handle, const char* name,
                                                                  void*, uint64_t* is_done) {
  if (!is_following || handle == RTLD_NEXT || !name) return nullptr;
  int error = errno;
  follow_new_if_free();
  void* found = nullptr;
  for (uint32_t i = 0; i < count && !found; i++) {
    Followed& one = *all[i];
    if (one.is_on && one.real && one.named.name == name &&
        number_of(dlsym(handle, name)) == one.real)
      found = reinterpret_cast<void*>(one.stub);
  }
  *is_done = found != nullptr;
  errno = error;
  return found;
}

// Whether dlopen finds another file for this caller than for us: by its own path of libraries.
static bool depends_on_caller(const char* path, void* caller) {
  if (strchr(path, '$')) return true;
  if (strchr(path, '/')) return false;
  Dl_info info;
  link_map* map = nullptr;
  if (!dladdr1(caller, &info, reinterpret_cast<void**>(&map), RTLD_DL_LINKMAP) || !map) return true;
  for (const ElfW(Dyn)* entry = map->l_ld; entry && entry->d_tag != DT_NULL; entry++)
    if (entry->d_tag == DT_RPATH || entry->d_tag == DT_RUNPATH) return true;
  return false;
}

// The library, opened; `is_done` stays 0 if dlopen is to open it, for its caller.
__attribute__((visibility("hidden"))) void* stepscope_open_library(const char* path, int flags,
                                                                   void* caller, uint64_t* is_done) {
  if (!is_following || !path || depends_on_caller(path, caller)) return nullptr;
  void* handle = dlopen(path, flags);
  int error = errno;
  follow_new_if_free();
  errno = error;
  *is_done = 1;
  return handle;
}

}  // extern "C"
#endif
