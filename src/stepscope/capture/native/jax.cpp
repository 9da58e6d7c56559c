// A compiled function of JAX runs in C++ and calls Python only when it has to be compiled, so its calls
// are seen in the slot `tp_call` of its type. The interpreter would bypass that slot by the
// vectorcall of each object: the type's flag for it is cleared meanwhile.
#include "jax.h"

#include <memory>
#include <string>
#include <unordered_map>

#include "collector.h"
#include "places.h"

namespace stepscope {
namespace {

// What the program calls; guarded by the GIL, like all below.
struct Function {
  KeyId key;
  std::string name;
};
constexpr size_t kMostFunctions = 1u << 16;
std::unordered_map<PyObject*, Function>& functions() {
  static auto* known = new std::unordered_map<PyObject*, Function>;
  return *known;
}

struct CallHook {
  PyTypeObject* type = nullptr;
  ternaryfunc call = nullptr;  // stays: calls may still be running when it is undone
  unsigned long flag = 0;
  PyObject *resolve = nullptr, *compiled = nullptr;
} calls;

struct BufferHook {
  PyTypeObject* type = nullptr;
  getbufferproc read = nullptr;
  std::string name;
} buffers;

uint64_t compilations = 0;
__thread int depth = 0;  // of watched calls: nested ones are traced by the outermost

// Calls Python for the collector: nothing that it runs is counted, and no exception passes.
PyObject* ask(Thread& thread, PyObject* function, PyObject* arguments) {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  bool was_busy = thread.is_busy;
  if (!was_busy) thread.interrupted = innermost();
  thread.is_busy = true;
  PyObject* answer = arguments ? PyObject_CallObject(function, arguments) : nullptr;
  if (!answer) PyErr_Clear();
  thread.is_busy = was_busy;
  Py_XDECREF(arguments);
  PyErr_Restore(type, value, traceback);
  return answer;
}

Function described(Thread& thread, PyObject* function) {
  const char *name = "jit", *file = "";
  unsigned line = 0;
  PyObject* answer = ask(thread, calls.resolve, Py_BuildValue("(O)", function));
  bool is_known = answer && PyArg_ParseTuple(answer, "ssI", &name, &file, &line);
  if (!is_known) PyErr_Clear();
  Function result{thread.collector.keys.find(Kind::op, name, file, line), name};
  Py_XDECREF(answer);
  return result;
}

const Function& function_of(Thread& thread, PyObject* function) {
  auto found = functions().find(function);
  if (found != functions().end()) return found->second;
  if (functions().size() >= kMostFunctions) functions().clear();
  return functions()[function] = described(thread, function);
}

void tell_compiled(Thread& thread, Entry* entry, PyObject* function, PyObject* arguments,
                   PyObject* keywords) {
  uint64_t entered = ticks(), cpu_ns = nanoseconds(CLOCK_THREAD_CPUTIME_ID);
  PyObject* given = Py_BuildValue("(OOO)", function, arguments, keywords ? keywords : Py_None);
  Py_XDECREF(ask(thread, calls.compiled, given));
  entry->cpu_ns += nanoseconds(CLOCK_THREAD_CPUTIME_ID) - cpu_ns;
  thread.totals.own += ticks() - entered;
}

// An entry that did not end is still on its stack: it is not freed then, a rare and small leak.
struct Release {
  void operator()(Entry* entry) const {
    if (!entry->is_linked.load(std::memory_order_acquire)) delete entry;
  }
};

PyObject* watched_call(PyObject* function, PyObject* arguments, PyObject* keywords) {
  Thread* thread = depth ? nullptr : this_thread();
  if (!thread || thread->is_busy) return calls.call(function, arguments, keywords);
  const Function& known = function_of(*thread, function);
  Operator op{known.name.c_str()};
  op.key = known.key;
  op.encloses = op.measures_cpu = true;
  std::unique_ptr<Entry, Release> entry(new Entry);
  uint64_t seen = compilations, session = thread->collector.session;
  begin(entry.get(), op, nullptr);
  depth++;
  PyObject* result = calls.call(function, arguments, keywords);
  depth--;
  thread = this_thread();
  bool is_same = thread && thread->collector.session == session;
  if (is_same && seen != compilations)
    tell_compiled(*thread, entry.get(), function, arguments, keywords);
  end(entry.get());
  return result;
}

void count_read(Thread& thread, uint64_t begun, uint64_t cpu_ns) {
  uint64_t ended = ticks();
  cpu_ns = nanoseconds(CLOCK_THREAD_CPUTIME_ID) - cpu_ns;
  KeyId key = thread.collector.keys.find(Kind::op, buffers.name);
  add_call(thread, {{key}, ended - begun, cpu_ns});
  thread.totals.own += ticks() - ended;
}

int watched_read(PyObject* array, Py_buffer* view, int flags) {
  Thread* thread = depth ? nullptr : this_thread();
  if (!thread || thread->is_busy) return buffers.read(array, view, flags);
  uint64_t cpu_ns = nanoseconds(CLOCK_THREAD_CPUTIME_ID), begun = ticks();
  int status = buffers.read(array, view, flags);
  if (!status && thread == this_thread()) count_read(*thread, begun, cpu_ns);
  return status;
}

}  // namespace

const char* watch_calls(PyTypeObject* type, PyObject* resolve, PyObject* compiled) {
#if defined(Py_GIL_DISABLED)
  return "this Python has no global lock";
#else
  if (!(type->tp_flags & Py_TPFLAGS_HEAPTYPE) || !type->tp_call) return "its type has no such slot";
  if (type->tp_call == watched_call) return "another collection watches them";
  Py_INCREF(type);
  Py_INCREF(resolve);
  Py_INCREF(compiled);
  functions().clear();
  calls = {type, type->tp_call, type->tp_flags & Py_TPFLAGS_HAVE_VECTORCALL, resolve, compiled};
  type->tp_call = watched_call;
  type->tp_flags &= ~Py_TPFLAGS_HAVE_VECTORCALL;
  PyType_Modified(type);
  return "";
#endif
}

const char* watch_buffers(PyTypeObject* type, const char* name) {
  PyBufferProcs* slots = type->tp_flags & Py_TPFLAGS_HEAPTYPE ? type->tp_as_buffer : nullptr;
  if (!slots || !slots->bf_getbuffer) return "its type has no such slot";
  if (slots->bf_getbuffer == watched_read) return "another collection watches them";
  Py_INCREF(type);
  buffers = {type, slots->bf_getbuffer, name};
  slots->bf_getbuffer = watched_read;
  return "";
}

// The Python functions and types are never released: a call may be running in another thread.
void leave_jax() {
  if (calls.type && calls.type->tp_call == watched_call) {
    calls.type->tp_call = calls.call;
    calls.type->tp_flags |= calls.flag;
    PyType_Modified(calls.type);
  }
  calls.type = nullptr;
  if (buffers.type && buffers.type->tp_as_buffer->bf_getbuffer == watched_read)
    buffers.type->tp_as_buffer->bf_getbuffer = buffers.read;
  buffers.type = nullptr;
}

void forget_function(PyObject* function) { functions().erase(function); }

bool report_compilation() {
  compilations++;
  return depth > 0;
}

}  // namespace stepscope
