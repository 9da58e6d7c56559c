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

// Python opens and closes windows of XLA's profiler between calls, where one is due.
struct WindowHook {
  PyObject *begins = nullptr, *ends = nullptr;  // never released, as the functions above
  uint64_t due = UINT64_MAX;                    // ticks; 0 while one is open
} windows;

uint64_t compilations = 0;
__thread int depth = 0;  // of watched calls: nested ones are traced by the outermost

// Calls Python for the collector: nothing that it runs is counted. Its exception stays set.
PyObject* call_unseen(Thread& thread, PyObject* function, PyObject* arguments) {
  if (!arguments) return nullptr;
  bool was_busy = thread.is_busy;
  if (!was_busy) thread.interrupted = innermost();
  thread.is_busy = true;
  PyObject* answer = PyObject_CallObject(function, arguments);
  thread.is_busy = was_busy;
  Py_DECREF(arguments);
  return answer;
}

// The same, and no exception passes.
PyObject* ask(Thread& thread, PyObject* function, PyObject* arguments) {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyObject* answer = call_unseen(thread, function, arguments);
  if (!answer) PyErr_Clear();
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

// The time of the collector's own work within a call, which the call does not count.
class OwnPart {
 public:
  OwnPart(Thread& thread, Entry& entry) : thread_(thread), entry_(entry) {}
  ~OwnPart() {
    entry_.cpu_ns += nanoseconds(CLOCK_THREAD_CPUTIME_ID) - cpu_ns_;
    thread_.totals.own += ticks() - entered_;
  }

 private:
  Thread& thread_;
  Entry& entry_;
  const uint64_t entered_ = ticks(), cpu_ns_ = nanoseconds(CLOCK_THREAD_CPUTIME_ID);
};

void tell_compiled(Thread& thread, Entry* entry, PyObject* function, PyObject* arguments,
                   PyObject* keywords) {
  OwnPart own(thread, *entry);
  PyObject* given = Py_BuildValue("(OOO)", function, arguments, keywords ? keywords : Py_None);
  Py_XDECREF(ask(thread, calls.compiled, given));
}

// The mark of a call that a window covers, or null; false if the program's handler raised.
bool window_begins(Thread& thread, Entry& entry, PyObject*& mark) {
  if (entry.start < windows.due || !entry.slot) return true;
  OwnPart own(thread, entry);
  mark = call_unseen(thread, windows.begins, Py_BuildValue("(I)", entry.slot->node));
  if (mark == Py_None) Py_CLEAR(mark);
  return mark || !PyErr_Occurred();
}

// Ends the mark; `result` becomes null if the program's handler raised.
void window_ends(Thread* thread, Entry* entry, PyObject* mark, PyObject*& result, bool compiled) {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyObject* about = Py_BuildValue("(OOO)", mark, result ? result : Py_None,
                                  compiled ? Py_True : Py_False);
  PyObject* answer = nullptr;
  if (thread) {
    OwnPart own(*thread, *entry);
    answer = call_unseen(*thread, windows.ends, about);
  } else if (about) {
    answer = PyObject_CallObject(windows.ends, about);
    Py_DECREF(about);
  }
  Py_DECREF(mark);
  if (result && !answer) {
    Py_CLEAR(result);
    return;
  }
  if (!answer) PyErr_Clear();
  Py_XDECREF(answer);
  PyErr_Restore(type, value, traceback);
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
  PyObject *mark = nullptr, *result = nullptr;
  if (window_begins(*thread, *entry, mark)) {
    depth++;
    result = calls.call(function, arguments, keywords);
    depth--;
  }
  thread = this_thread();
  bool is_same = thread && thread->collector.session == session;
  if (is_same && seen != compilations)
    tell_compiled(*thread, entry.get(), function, arguments, keywords);
  if (mark) window_ends(is_same ? thread : nullptr, entry.get(), mark, result, seen != compilations);
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

void watch_windows(PyObject* begins, PyObject* ends) {
  Py_INCREF(begins);
  Py_INCREF(ends);
  windows = {begins, ends, UINT64_MAX};
}

void next_window(const Collector& collector, double after_s) {
  if (after_s < 0) windows.due = UINT64_MAX;
  else if (after_s == 0) windows.due = 0;
  else windows.due = ticks() + uint64_t(after_s * 1e9 / nanoseconds_per_tick(collector));
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
  windows.due = UINT64_MAX;
}

void forget_function(PyObject* function) { functions().erase(function); }

bool report_compilation() {
  compilations++;
  return depth > 0;
}

}  // namespace stepscope
