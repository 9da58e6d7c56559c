// What Python sees of the collector.
#include "collector.h"
#include "places.h"
#if defined(STEPSCOPE_PYTORCH)
#include "pytorch.h"
#endif

namespace stepscope {
namespace {

Collector* last = nullptr;  // the one at work, or else the one that was

PyObject* start(PyObject*, PyObject* arguments) {
  Options options;
  if (!PyArg_ParseTuple(arguments, "II", &options.sources, &options.limit)) return nullptr;
  if (active.load()) {
    PyErr_SetString(PyExc_RuntimeError, "contexts are being collected already");
    return nullptr;
  }
  last = stepscope::start(options);
  this_thread();
  Py_RETURN_NONE;
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
  if (last) last->keys.locate(last->keys.find(Kind::op, name), file, line);
  Py_RETURN_NONE;
}

PyObject* module_died(PyObject*, PyObject*) {
  if (last) last->module_age++;
  Py_RETURN_NONE;
}

// -- files

std::vector<std::string> strings_of(PyObject* list) {
  std::vector<std::string> strings;
  for (Py_ssize_t i = 0; i < PyList_Size(list); i++)
    strings.push_back(PyUnicode_AsUTF8(PyList_GetItem(list, i)));
  return strings;
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

PyMethodDef methods[] = {
    {"start", start, METH_VARARGS, "start(sources, limit): begin to collect."},
    {"stop", stop, METH_NOARGS, "stop(): no thread is in a callback when it returns."},
    {"release", release, METH_NOARGS, "release(): free what a stopped collector holds."},
    {"snapshot", snapshot, METH_VARARGS, "snapshot(complete): the tree as JSON, or None."},
    {"forget", forget, METH_NOARGS, "forget(): for a forked child."},
    {"note", note, METH_VARARGS, "note(text): a sentence for the file."},
    {"watch_modules", watch_modules, METH_VARARGS, "watch_modules(code, resolver)"},
    {"module_key", module_key, METH_VARARGS, "module_key(name, file, line, class)"},
    {"rename", rename, METH_VARARGS, "rename(key, name)"},
    {"locate", locate, METH_VARARGS, "locate(operator, file, line)"},
    {"module_died", module_died, METH_NOARGS, "module_died(): its address may come again."},
    {"hide", hide, METH_VARARGS, "hide(frames, barriers, annotators)"},
    {"follow_pytorch", follow, METH_VARARGS, "follow_pytorch(on)"},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_contexts", "The calling-context collector.", -1,
                          methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace stepscope

PyMODINIT_FUNC PyInit__contexts() { return PyModule_Create(&stepscope::definition); }
