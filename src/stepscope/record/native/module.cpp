// The collector's Python interface.
#include "collector.h"
#include "cubin_lines.h"
#include "device.h"
#include "header_layout.h"
#include "jax_methods.h"
#include "library_calls.h"
#include "monitor.h"
#include "places.h"
#if defined(STEPSCOPE_PYTORCH)
#include "pytorch.h"
#endif

namespace stepscope {
namespace {

Collector* last = nullptr;  // the active collector, or else the last one

PyObject* start(PyObject*, PyObject* arguments) {
  Options options;
  int counters = 0;
  if (!PyArg_ParseTuple(arguments, "IIIIp", &options.sources, &options.limit, &options.rates.cpu,
                        &options.rates.real, &counters))
    return nullptr;
  options.rates.counters = counters;
  if (active.load()) {
    PyErr_SetString(PyExc_RuntimeError, "contexts are being collected already");
    return nullptr;
  }
  last = stepscope::start(options);
  if (Thread* thread = this_thread()) {
    thread->toggle_busy();
    learn_frames(*thread);
    thread->toggle_busy();
  }
  Py_RETURN_NONE;
}

std::string bytes_of(PyObject* bytes) {
  return std::string(PyBytes_AS_STRING(bytes), size_t(PyBytes_GET_SIZE(bytes)));
}

PyObject* flush_regularly(PyObject*, PyObject* arguments) {
  FlushPlan plan;
  PyObject *path, *partial, *kept, *base, *before, *manifest, *modules;
  int keep_empty;
  if (!PyArg_ParseTuple(arguments, "SSSSO!SSddp", &path, &partial, &kept, &base, &PyTuple_Type,
                        &before, &manifest, &modules, &plan.first_s, &plan.interval_s, &keep_empty))
    return nullptr;
  FileVersion& version = plan.before;
  if (PyTuple_GET_SIZE(before) && !PyArg_ParseTuple(before, "KKKK", &version.device, &version.inode,
                                                    &version.modified_ns, &version.size))
    return nullptr;
  plan.path = bytes_of(path);
  plan.partial = bytes_of(partial);
  plan.kept = bytes_of(kept);
  plan.base = bytes_of(base);
  plan.members = {{"manifest.json", bytes_of(manifest)}, {"modules.json", bytes_of(modules)}};
  plan.keep_empty = keep_empty;
  if (last && active.load() == last && !last->flusher) {
    last->flusher = new Flusher(*last, plan);
    last->flusher->start();
  }
  Py_RETURN_NONE;
}

PyObject* stop_flushing(PyObject*, PyObject*) {
  Py_BEGIN_ALLOW_THREADS;
  if (last && last->flusher) last->flusher->stop();
  Py_END_ALLOW_THREADS;
  if (!last || !last->flusher || last->flusher->own() == FileVersion()) Py_RETURN_NONE;
  const Flusher& flusher = *last->flusher;
  FileVersion own = flusher.own();
  std::string kept = flusher.has_kept() ? flusher.plan().kept : "";
  return Py_BuildValue("(KKKK)N", own.device, own.inode, own.modified_ns, own.size,
                       PyUnicode_DecodeFSDefaultAndSize(kept.data(), Py_ssize_t(kept.size())));
}

PyObject* stop(PyObject*, PyObject*) {
  Py_BEGIN_ALLOW_THREADS;
  stepscope::stop();
  Py_END_ALLOW_THREADS;
  Py_RETURN_NONE;
}

PyObject* release(PyObject*, PyObject*) {
  if (last && !active.load()) stepscope::release(last);
  if (!active.load()) last = nullptr;
  Py_RETURN_NONE;
}

PyObject* snapshot(PyObject*, PyObject* arguments) {
  int complete = 0;
  if (!PyArg_ParseTuple(arguments, "p", &complete)) return nullptr;
  if (!last) Py_RETURN_NONE;
  std::string text;
  Py_BEGIN_ALLOW_THREADS;
  text = stepscope::snapshot(*last, complete);
  Py_END_ALLOW_THREADS;
  return PyBytes_FromStringAndSize(text.data(), Py_ssize_t(text.size()));
}

// For tests: the frames that the sampler reads from a given frame on.
PyObject* read_frames(PyObject*, PyObject* arguments) {
  unsigned long long innermost;
  if (!PyArg_ParseTuple(arguments, "K", &innermost)) return nullptr;
  StackReader reader(memory_by_headers());
  StackResult result = reader.read_from(reinterpret_cast<const void*>(innermost), nullptr);
  if (result == StackResult::torn) Py_RETURN_NONE;
  PyObject* found = PyList_New(0);
  for (const SampledFrame& frame : reader.frames()) {
    const Code& code = *frame.description;
    int line = reader.line_of(frame);
    PyObject* item = Py_BuildValue("s#s#i", code.file.data(), Py_ssize_t(code.file.size()),
                                   code.name.data(), Py_ssize_t(code.name.size()), line);
    if (item) PyList_Append(found, item);
    Py_XDECREF(item);
  }
  return found;
}

// For tests: the numbers of the headers' layout, in order.
PyObject* layout(PyObject*, PyObject*) {
  PythonLayout layout = memory_by_headers().layout;
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(&layout), sizeof layout);
}

PyObject* innermost_frame(PyObject*, PyObject*) {
  return PyLong_FromUnsignedLongLong(reinterpret_cast<uintptr_t>(innermost()));
}

PyObject* missing_counters(PyObject*, PyObject*) {
  return PyUnicode_FromString(why_no_counters().c_str());
}

PyObject* devices(PyObject*, PyObject* arguments) {
  int on = 0, stalls = 0;
  if (!PyArg_ParseTuple(arguments, "p|p", &on, &stalls)) return nullptr;
  std::string hindered, unsampled;
  bool any = false;
  Py_BEGIN_ALLOW_THREADS;  // the library's threads may be in a callback that needs the GIL
  if (on) any = start_devices(stalls, hindered, unsampled);
  else stop_devices();
  Py_END_ALLOW_THREADS;
  return Py_BuildValue("Oss", any ? Py_True : Py_False, hindered.c_str(), unsampled.c_str());
}

PyObject* flush(PyObject*, PyObject*) {
  Py_BEGIN_ALLOW_THREADS;
  flush_devices();
  Py_END_ALLOW_THREADS;
  Py_RETURN_NONE;
}

PyObject* missing_devices(PyObject*, PyObject*) {
  PyObject* found = PyDict_New();
  for (const Vendor* vendor : {&kNvidia, &kAmd}) {
    std::string why = vendor->probe();
    std::string no_stalls = why.empty() ? vendor->probe_stalls() : why;
    PyObject* both = Py_BuildValue("ss", why.c_str(), no_stalls.c_str());
    PyDict_SetItemString(found, vendor->name, both);
    Py_DECREF(both);
  }
  return found;
}

PyObject* forget(PyObject*, PyObject*) {
  forget_after_fork();
  last = nullptr;
  Py_RETURN_NONE;
}

PyObject* note(PyObject*, PyObject* arguments) {
  const char* text;
  if (!PyArg_ParseTuple(arguments, "s", &text)) return nullptr;
  if (last) {
    std::lock_guard<std::mutex> lock(last->mutex);
    last->notes.push_back(text);
  }
  Py_RETURN_NONE;
}

// -- modules

PyObject* watch_modules(PyObject*, PyObject* arguments) {
  PyObject *code, *function;
  if (!PyArg_ParseTuple(arguments, "O!O", &PyCode_Type, &code, &function)) return nullptr;
  set_module_call(code, function);
  Py_RETURN_NONE;
}

PyObject* module_key(PyObject*, PyObject* arguments) {
  const char *name, *file, *type;
  unsigned line;
  if (!PyArg_ParseTuple(arguments, "ssIs", &name, &file, &line, &type)) return nullptr;
  if (!last) Py_RETURN_NONE;
  return PyLong_FromUnsignedLong(last->keys.find(Kind::module, name, file, line, type));
}

PyObject* rename(PyObject*, PyObject* arguments) {
  unsigned key;
  const char* name;
  if (!PyArg_ParseTuple(arguments, "Is", &key, &name)) return nullptr;
  if (last) last->keys.rename(key, name);
  Py_RETURN_NONE;
}

PyObject* locate(PyObject*, PyObject* arguments) {
  const char *name, *file;
  unsigned line;
  if (!PyArg_ParseTuple(arguments, "ssI", &name, &file, &line)) return nullptr;
  if (!last) Py_RETURN_NONE;
  last->keys.locate(last->keys.find(Kind::op, name), file, line);
  last->keys.locate(last->keys.find(Kind::kernel, name, "", 0, "kernel"), file, line);
  Py_RETURN_NONE;
}

// Sets the name and location of a frame after they are known.
void describe(KeyId key, const char* name, const char* file, unsigned line) {
  last->keys.rename(key, name);
  last->keys.locate(key, file, line);
}

PyObject* describe_line(PyObject*, PyObject* arguments) {
  const char *name, *file;
  unsigned key, line;
  if (!PyArg_ParseTuple(arguments, "IssI", &key, &name, &file, &line)) return nullptr;
  if (last) describe(key, name, file, line);
  Py_RETURN_NONE;
}

PyObject* describe_annotation(PyObject*, PyObject* arguments) {
  const char *recorded, *name, *file;
  unsigned line;
  if (!PyArg_ParseTuple(arguments, "sssI", &recorded, &name, &file, &line)) return nullptr;
  if (!last) Py_RETURN_NONE;
  describe(last->keys.find(Kind::annotation, recorded), name, file, line);
  Py_RETURN_NONE;
}

PyObject* module_died(PyObject*, PyObject*) {
  if (last) last->module_age++;
  Py_RETURN_NONE;
}

// -- files

std::vector<std::string> strings_of(PyObject* list) {
  std::vector<std::string> strings;
  for (Py_ssize_t i = 0; i < PyList_Size(list); i++) strings.push_back(text_of(PyList_GetItem(list, i)));
  return strings;
}

PyObject* lines_of(PyObject*, PyObject* list) {
  if (!PyList_Check(list)) return PyErr_Format(PyExc_TypeError, "expected a list of files");
  std::vector<std::string> files = strings_of(list);
  PyObject* found = PyList_New(0);
  if (!last) return found;
  for (auto& line : last->keys.lines_of({files.begin(), files.end()})) {
    PyObject* item = Py_BuildValue("IsI", line.key, line.file.c_str(), line.line);
    if (item) PyList_Append(found, item);
    Py_XDECREF(item);
  }
  return found;
}

PyObject* hide(PyObject*, PyObject* arguments) {
  PyObject *hidden, *barriers, *annotators;
  if (!PyArg_ParseTuple(arguments, "O!O!O!", &PyList_Type, &hidden, &PyList_Type, &barriers,
                        &PyList_Type, &annotators))
    return nullptr;
  set_hidden(strings_of(hidden), strings_of(barriers), strings_of(annotators));
  Py_RETURN_NONE;
}

PyObject* follow(PyObject*, PyObject* arguments) {
  int on = 0;
  if (!PyArg_ParseTuple(arguments, "p", &on)) return nullptr;
#if defined(STEPSCOPE_PYTORCH)
  on ? attach_pytorch() : detach_pytorch();
#endif
  Py_RETURN_NONE;
}

PyObject* memory(PyObject*, PyObject* arguments) {
  int on = 0;
  if (!PyArg_ParseTuple(arguments, "p", &on)) return nullptr;
  const char* problem = "";
#if defined(STEPSCOPE_PYTORCH)
  if (on) problem = watch_memory();
  else unwatch_memory();
#endif
  return PyUnicode_FromString(problem);
}

// -- the shim, for tools and adapters in Python

// Operators report their tensors only while somebody watches them.
void follow_tensors() {
#if defined(STEPSCOPE_PYTORCH)
  is_watched(Domain::tensors) ? attach_tensors() : detach_tensors();
#endif
}

void call_python(const MonitorEvent& event, void* function) {
  if (!Py_IsInitialized()) return;
  PyGILState_STATE state = PyGILState_Ensure();
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  Thread* thread = this_thread();
  bool was_busy = thread && thread->is_busy;
  if (thread && !was_busy) thread->interrupted = innermost();
  if (thread) thread->is_busy = true;
  PyObject* done = PyObject_CallFunction(
      static_cast<PyObject*>(function), "IIsKLLIs", unsigned(event.domain), unsigned(event.phase),
      event.name, static_cast<unsigned long long>(event.address), static_cast<long long>(event.bytes),
      static_cast<long long>(event.nanoseconds), event.context,
      event.details);
  if (!done) PyErr_WriteUnraisable(static_cast<PyObject*>(function));
  Py_XDECREF(done);
  if (thread) thread->is_busy = was_busy;
  PyErr_Restore(type, value, traceback);
  PyGILState_Release(state);
}

PyObject* watch(PyObject*, PyObject* arguments) {
  unsigned domain;
  PyObject* function;
  if (!PyArg_ParseTuple(arguments, "IO", &domain, &function)) return nullptr;
  if (domain >= unsigned(Domain::count)) return PyErr_Format(PyExc_ValueError, "no such domain");
  Py_INCREF(function);  // never released: a callback may be running in another thread when it is unwatched
  int number = stepscope::watch(Domain(domain), call_python, function);
  follow_tensors();
  return PyLong_FromLong(number);
}

PyObject* unwatch(PyObject*, PyObject* arguments) {
  int number;
  if (!PyArg_ParseTuple(arguments, "i", &number)) return nullptr;
  stepscope::unwatch(number);
  follow_tensors();
  Py_RETURN_NONE;
}

PyObject* emit(PyObject*, PyObject* arguments) {
  unsigned domain, phase;
  const char* name;
  unsigned long long address = 0;
  long long bytes = 0;
  if (!PyArg_ParseTuple(arguments, "IIs|KL", &domain, &phase, &name, &address, &bytes))
    return nullptr;
  Py_BEGIN_ALLOW_THREADS;
  stepscope::emit({Domain(domain), Phase(phase), name, address, bytes});
  Py_END_ALLOW_THREADS;
  Py_RETURN_NONE;
}

PyObject* path_of(const std::vector<PathFrame>& path) {
  PyObject* list = PyList_New(0);
  for (auto& frame : path) {
    PyObject* item = Py_BuildValue("IOssI", unsigned(frame.kind),
                                   frame.is_backward ? Py_True : Py_False, frame.name.c_str(),
                                   frame.file.c_str(), frame.line);
    if (item) PyList_Append(list, item);
    Py_XDECREF(item);
  }
  return list;
}

PyObject* call_path(PyObject*, PyObject* arguments) {
  unsigned sources, context = kRoot;
  if (!PyArg_ParseTuple(arguments, "I|I", &sources, &context)) return nullptr;
  std::vector<PathFrame> path;
  if (context) path = stepscope::call_path(sources, context);
  else path = stepscope::call_path(sources);
  return path_of(path);
}

void discard(PyObject* capsule) {
  auto* entry = static_cast<Entry*>(PyCapsule_GetPointer(capsule, nullptr));
  if (!entry->is_linked) delete entry;  // else it did not end and is still on its stack
}

PyObject* token_of(const Operator& op) {
  auto* entry = new Entry;
  stepscope::begin(entry, op, [] { return uint64_t(PyThread_get_thread_ident()); });
  return PyCapsule_New(entry, nullptr, discard);
}

PyObject* begin(PyObject*, PyObject* arguments) {
  Operator op{nullptr};
  int is_backward = 0;
  long long sequence = -1;
  unsigned long long thread = 0;
  if (!PyArg_ParseTuple(arguments, "s|LpK", &op.name, &sequence, &is_backward, &thread))
    return nullptr;
  op.sequence = sequence;
  op.is_backward = is_backward;
  op.forward_id = thread;
  op.is_from_python = true;
  return token_of(op);
}

PyObject* enclose(PyObject*, PyObject* arguments) {
  Operator op{nullptr, Kind::annotation};
  if (!PyArg_ParseTuple(arguments, "s", &op.name)) return nullptr;
  op.is_from_python = op.encloses = true;
  return token_of(op);
}

PyObject* begin_whole(PyObject*, PyObject* arguments) {
  Operator op{nullptr};
  if (!PyArg_ParseTuple(arguments, "s", &op.name)) return nullptr;
  op.is_from_python = op.encloses = op.measures_cpu = true;
  return token_of(op);
}

PyObject* end(PyObject*, PyObject* capsule) {
  auto* entry = static_cast<Entry*>(PyCapsule_GetPointer(capsule, nullptr));
  if (!entry) return nullptr;
  stepscope::end(entry);
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"start", start, METH_VARARGS, "start(sources, limit, cpu_hz, real_hz, counters)"},
    {"follow_devices", devices, METH_VARARGS, "follow_devices(on[, stalls]): any, hindrances"},
    {"follow_libraries", follow_libraries, METH_O,
     "follow_libraries(((library, function, kind, arguments), …)): the reason if it cannot; () ends it."},
    {"flush_devices", flush, METH_NOARGS, "flush_devices(): fetch the records of finished work."},
    {"devices_missing", missing_devices, METH_NOARGS, "For each vendor, the reasons why devices and stalls are unavailable."},
    {"read_frames", read_frames, METH_VARARGS, "read_frames(address): file, name, line; None if torn"},
    {"lines_of_cubin", lines_of_cubin, METH_O, "lines_of_cubin(bytes): for tests."},
    {"layout", layout, METH_NOARGS, "layout() -> bytes: for tests."},
    {"innermost_frame", innermost_frame, METH_NOARGS, "innermost_frame(): the caller's address"},
    {"counters_missing", missing_counters, METH_NOARGS, "The reason why there are none; empty if there are."},
    {"flush_regularly", flush_regularly, METH_VARARGS,
     "flush_regularly(path, partial, kept, base, before, manifest, modules, first_s, interval_s, "
     "keep_empty)"},
    {"stop_flushing", stop_flushing, METH_NOARGS, "stop_flushing(): the file's version and the path of an earlier file; None if none."},
    {"stop", stop, METH_NOARGS, "stop(): no thread is in a callback when it returns."},
    {"release", release, METH_NOARGS, "release(): free the stopped collector."},
    {"snapshot", snapshot, METH_VARARGS, "snapshot(complete): the tree as JSON, or None."},
    {"forget", forget, METH_NOARGS, "forget(): for a forked child."},
    {"note", note, METH_VARARGS, "note(text): add a note to the file."},
    {"watch_modules", watch_modules, METH_VARARGS, "watch_modules(code, resolver)"},
    {"module_key", module_key, METH_VARARGS, "module_key(name, file, line, class)"},
    {"rename", rename, METH_VARARGS, "rename(key, name)"},
    {"locate", locate, METH_VARARGS, "locate(operator, file, line)"},
    {"describe", describe_line, METH_VARARGS, "describe(key, name, file, line)"},
    {"describe_annotation", describe_annotation, METH_VARARGS, "describe_annotation(recorded, name, file, line)"},
    {"lines_of", lines_of, METH_O, "lines_of(files): key, file and line of each frame in them"},
    {"module_died", module_died, METH_NOARGS, "module_died(): its address may be reused."},
    {"hide", hide, METH_VARARGS, "hide(frames, barriers, annotators)"},
    {"watch_memory", memory, METH_VARARGS, "watch_memory(on): the reason if it cannot, or None."},
    {"watch", watch, METH_VARARGS, "watch(domain, function): returns a number for unwatch."},
    {"unwatch", unwatch, METH_VARARGS, "unwatch(number)"},
    {"emit", emit, METH_VARARGS, "emit(domain, phase, name, address, bytes)"},
    {"call_path", call_path, METH_VARARGS, "call_path(sources[, context])"},
    {"begin", begin, METH_VARARGS, "begin(name[, sequence, is_backward, forward_thread])"},
    {"enclose", enclose, METH_VARARGS, "enclose(name): like begin, but nested operators count as part of it"},
    {"begin_whole", begin_whole, METH_VARARGS,
     "begin_whole(name): like begin, with CPU time; nested operators count as part of it"},
    {"end", end, METH_O, "end(entry): takes the result of begin"},
    {"follow_pytorch", follow, METH_VARARGS, "follow_pytorch(on)"},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_contexts", "The calling-context collector.", -1,
                          methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

Collector* last_collector() { return last; }

}  // namespace stepscope

PyMODINIT_FUNC PyInit__contexts() {
  PyObject* module = PyModule_Create(&stepscope::definition);
  if (module && PyModule_AddFunctions(module, stepscope::jax_methods) < 0) Py_CLEAR(module);
  return module;
}
