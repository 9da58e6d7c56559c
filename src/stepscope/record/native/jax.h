// JAX's adapter: calls of compiled functions, and reads of arrays, by the slots of their types.
#pragma once
#include <Python.h>

namespace stepscope {

struct Collector;

// Reports each outermost call of an object of `type`. `resolve(function)` returns its name, file and
// line; `compiled(function, arguments, keywords)` is called after a call that compiled, before its
// context ends. Returns the reason if it cannot, else "".
const char* watch_calls(PyTypeObject* type, PyObject* resolve, PyObject* compiled);
// Reports each successful read of the memory of an object of `type`, which waits for its value.
const char* watch_buffers(PyTypeObject* type, const char* name);
// Where a window is due: `begins(context)` is asked before each outermost call, and returns a mark or
// None; `ends(mark, result, compiled)` after it.
void watch_windows(PyObject* begins, PyObject* ends);
// When to ask next: after some seconds, before each call (0), or never (less).
void next_window(const Collector& collector, double after_s);
void leave_jax();
void forget_function(PyObject* function);
// Something was compiled; whether inside a watched call of this thread.
bool report_compilation();

}  // namespace stepscope
