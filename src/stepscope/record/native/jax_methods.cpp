#include "jax_methods.h"

#include <algorithm>

#include "jax.h"

namespace stepscope {
namespace {

PyObject* watch_calls(PyObject*, PyObject* arguments) {
  PyObject *type, *resolve, *compiled;
  if (!PyArg_ParseTuple(arguments, "O!OO", &PyType_Type, &type, &resolve, &compiled))
    return nullptr;
  return PyUnicode_FromString(
      stepscope::watch_calls(reinterpret_cast<PyTypeObject*>(type), resolve, compiled));
}

PyObject* watch_buffers(PyObject*, PyObject* arguments) {
  PyObject* type;
  const char* name;
  if (!PyArg_ParseTuple(arguments, "O!s", &PyType_Type, &type, &name)) return nullptr;
  return PyUnicode_FromString(
      stepscope::watch_buffers(reinterpret_cast<PyTypeObject*>(type), name));
}

PyObject* watch_windows(PyObject*, PyObject* arguments) {
  PyObject *begins, *ends;
  if (!PyArg_ParseTuple(arguments, "OO", &begins, &ends)) return nullptr;
  stepscope::watch_windows(begins, ends);
  Py_RETURN_NONE;
}

PyObject* next_window(PyObject*, PyObject* arguments) {
  double after_s;
  if (!PyArg_ParseTuple(arguments, "d", &after_s)) return nullptr;
  if (Collector* last = last_collector()) stepscope::next_window(*last, after_s);
  Py_RETURN_NONE;
}

PyObject* keep_window(PyObject*, PyObject* arguments) {
  const char* name;
  PyObject* profile;
  if (!PyArg_ParseTuple(arguments, "sS", &name, &profile)) return nullptr;
  if (Collector* last = last_collector()) {
    auto kept = std::make_shared<const std::string>(PyBytes_AS_STRING(profile),
                                                    size_t(PyBytes_GET_SIZE(profile)));
    std::lock_guard<std::mutex> lock(last->mutex);
    last->windows[name] = std::move(kept);
  }
  Py_RETURN_NONE;
}

PyObject* drop_window(PyObject*, PyObject* arguments) {
  const char* name;
  if (!PyArg_ParseTuple(arguments, "s", &name)) return nullptr;
  if (Collector* last = last_collector()) {
    std::lock_guard<std::mutex> lock(last->mutex);
    last->windows.erase(name);
  }
  Py_RETURN_NONE;
}

PyObject* windows(PyObject*, PyObject*) {
  PyObject* found = PyDict_New();
  Collector* last = last_collector();
  if (!found || !last) return found;
  std::lock_guard<std::mutex> lock(last->mutex);
  for (auto& [name, profile] : last->windows) {
    PyObject* bytes = PyBytes_FromStringAndSize(profile->data(), Py_ssize_t(profile->size()));
    if (bytes) PyDict_SetItemString(found, name.c_str(), bytes);
    Py_XDECREF(bytes);
  }
  return found;
}

PyObject* leave_jax(PyObject*, PyObject*) {
  stepscope::leave_jax();
  Py_RETURN_NONE;
}

PyObject* forget_call(PyObject*, PyObject* arguments) {
  unsigned long long address;
  if (!PyArg_ParseTuple(arguments, "K", &address)) return nullptr;
  forget_function(reinterpret_cast<PyObject*>(address));
  Py_RETURN_NONE;
}

PyObject* compiled(PyObject*, PyObject*) { return PyBool_FromLong(report_compilation()); }

// The ticks of the parts of a call that has ended, no more than have passed in the call around it: JAX
// measures with a clock that may be set.
std::vector<uint64_t> ticks_of(Thread& thread, const std::vector<double>& ns) {
  double scale = 1 / nanoseconds_per_tick(thread.collector), sum = 0;
  for (double part : ns) sum += part * scale;
  if (Entry* around = thread.top) {
    double passed = double(ticks() - around->start - (thread.totals.own - around->own));
    if (sum > passed) scale *= passed / sum;
  }
  std::vector<uint64_t> found;
  for (double part : ns) found.push_back(uint64_t(part * scale));
  return found;
}

PyObject* spend(PyObject*, PyObject* arguments) {
  const char *name, *file;
  unsigned line;
  PyObject* parts;
  int is_one_call;
  if (!PyArg_ParseTuple(arguments, "ssIO!p", &name, &file, &line, &PyDict_Type, &parts, &is_one_call))
    return nullptr;
  Thread* thread = this_thread();
  Collector* last = last_collector();
  if (!thread || &thread->collector != last) Py_RETURN_NONE;
  KeyId whole = last->keys.find(Kind::annotation, name, file, line);
  std::vector<KeyId> keys;
  std::vector<double> ns;
  PyObject *part, *value;
  for (Py_ssize_t at = 0; PyDict_Next(parts, &at, &part, &value);) {
    const char* text = PyUnicode_AsUTF8(part);
    if (!text) return nullptr;
    keys.push_back(last->keys.find(Kind::annotation, text));
    ns.push_back(PyFloat_AsDouble(value));
  }
  if (PyErr_Occurred()) return nullptr;
  std::vector<uint64_t> spent = ticks_of(*thread, ns);
  uint64_t sum = 0;
  for (uint64_t time : spent) sum += time;
  if (is_one_call) add_call(*thread, {{whole}, sum});
  // Times are rounded when they are written: a nanosecond less, or the parts could exceed the whole.
  uint64_t rounding = uint64_t(1 / nanoseconds_per_tick(*last)) + 1;
  for (size_t i = 0; i < keys.size(); i++)
    add_call(*thread, {{whole, keys[i]}, spent[i] - std::min(spent[i], rounding)});
  Py_RETURN_NONE;
}

}  // namespace

PyMethodDef jax_methods[] = {
    {"watch_calls", watch_calls, METH_VARARGS,
     "watch_calls(type, resolve, compiled): the reason if it cannot, or an empty string."},
    {"watch_buffers", watch_buffers, METH_VARARGS,
     "watch_buffers(type, name): the reason if it cannot, or an empty string."},
    {"watch_windows", watch_windows, METH_VARARGS,
     "watch_windows(begins, ends): ask before and after calls, where a window is due."},
    {"next_window", next_window, METH_VARARGS,
     "next_window(after_s): when to ask; 0 before each call, a negative number never."},
    {"keep_window", keep_window, METH_VARARGS,
     "keep_window(name, profile): add a member to the capture."},
    {"drop_window", drop_window, METH_VARARGS, "drop_window(name): take it out again."},
    {"windows", windows, METH_NOARGS, "windows(): the members by name."},
    {"leave_jax", leave_jax, METH_NOARGS, "leave_jax(): undo watch_calls and watch_buffers."},
    {"forget_call", forget_call, METH_VARARGS, "forget_call(address): the function is gone."},
    {"compiled", compiled, METH_NOARGS,
     "compiled(): something was compiled; whether inside a watched call of this thread."},
    {"spend", spend, METH_VARARGS,
     "spend(name, file, line, parts, is_one_call): an annotation that has ended, below the current "
     "context, with the nanoseconds of its parts"},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace stepscope
