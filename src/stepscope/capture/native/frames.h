// The Python stack of this thread, read from the interpreter's memory without locks or new objects.
//
// While a thread runs an operator, its Python frames do not change. The layouts are those of CPython
// 3.10 to 3.14 (Include/internal/pycore_frame.h; in 3.14 pycore_interpframe_structs.h); later versions
// and free-threaded builds have no Python frames until their layouts are added here.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <frameobject.h>

#include <cstdint>

namespace stepscope {

#if defined(Py_GIL_DISABLED) || PY_VERSION_HEX >= 0x030F0000
#define STEPSCOPE_NO_FRAMES 1
struct Frame {};
#elif PY_VERSION_HEX >= 0x030E0000
struct Frame {
  PyObject* executable;
  Frame* previous;
  PyObject *function, *globals, *builtins, *locals;
  PyFrameObject* object;
  const void* position;
  void* stack_pointer;
  uint16_t return_offset;
  char owner;
  PyObject* locals_and_stack[1];
};
#elif PY_VERSION_HEX >= 0x030C0000
struct Frame {
  PyObject* executable;
  Frame* previous;
  PyObject *function, *globals, *builtins, *locals;
  PyFrameObject* object;
  const void* position;
  int stacktop;
  uint16_t return_offset;
  char owner;
  PyObject* locals_and_stack[1];
};
#elif PY_VERSION_HEX >= 0x030B0000
struct Frame {
  PyObject *function, *globals, *builtins, *locals;
  PyObject* executable;
  PyFrameObject* object;
  Frame* previous;
  const void* position;
  int stacktop;
  bool is_entry;
  char owner;
  PyObject* locals_and_stack[1];
};
#else
using Frame = ::_frame;
#endif

#if defined(STEPSCOPE_NO_FRAMES)
constexpr bool kReadsFrames = false;
inline Frame* top_frame(PyThreadState*) { return nullptr; }
inline Frame* back(Frame*) { return nullptr; }
inline PyCodeObject* code_of(Frame*) { return nullptr; }
inline uintptr_t position_of(Frame*) { return 0; }
inline PyObject* first_argument(Frame*) { return nullptr; }
inline bool is_shim(Frame*) { return true; }
inline int line_of(PyCodeObject*, uintptr_t) { return 0; }
#elif PY_VERSION_HEX >= 0x030B0000
constexpr bool kReadsFrames = true;
// Owners from the first on have no Python code (3.12 and later); the second is the greatest.
constexpr char kOwnedByInterpreter = 3;
constexpr char kLastOwner = PY_VERSION_HEX >= 0x030E0000 ? 4 : 3;
// From 3.14 on a reference in a frame has its kind in its low bits.
constexpr uintptr_t kTagBits = PY_VERSION_HEX >= 0x030E0000 ? 3 : 0;
inline PyObject* without_tag(PyObject* reference) {
  return reinterpret_cast<PyObject*>(reinterpret_cast<uintptr_t>(reference) & ~kTagBits);
}
inline Frame* top_frame(PyThreadState* state) {
#if PY_VERSION_HEX >= 0x030D0000
  return reinterpret_cast<Frame*>(state->current_frame);
#else
  return state->cframe ? reinterpret_cast<Frame*>(state->cframe->current_frame) : nullptr;
#endif
}
inline Frame* back(Frame* frame) { return frame->previous; }
inline PyCodeObject* code_of(Frame* frame) {
  return reinterpret_cast<PyCodeObject*>(without_tag(frame->executable));
}
// The frame's position in its code; code objects that are alive never share positions.
inline uintptr_t position_of(Frame* frame) { return reinterpret_cast<uintptr_t>(frame->position); }
inline PyObject* first_argument(Frame* frame) { return without_tag(frame->locals_and_stack[0]); }
inline bool is_shim(Frame* frame) {
  return PY_VERSION_HEX >= 0x030C0000 && frame->owner >= kOwnedByInterpreter;
}
inline int line_of(PyCodeObject* code, uintptr_t position) {
  return PyCode_Addr2Line(code, int(position - reinterpret_cast<uintptr_t>(code->co_code_adaptive)));
}
#else
constexpr bool kReadsFrames = true;
inline Frame* top_frame(PyThreadState* state) { return state->frame; }
inline Frame* back(Frame* frame) { return frame->f_back; }
inline PyCodeObject* code_of(Frame* frame) { return frame->f_code; }
inline uintptr_t position_of(Frame* frame) {
  return reinterpret_cast<uintptr_t>(frame->f_code) << 16 ^ uintptr_t(frame->f_lasti + 1);
}
inline PyObject* first_argument(Frame* frame) { return frame->f_localsplus[0]; }
inline bool is_shim(Frame*) { return false; }
inline int line_of(PyCodeObject* code, uintptr_t position) {
  uintptr_t start = reinterpret_cast<uintptr_t>(code) << 16;
  return PyCode_Addr2Line(code, (int(position ^ start) - 1) * 2);
}
#endif

// This thread's Python state, or null.
inline PyThreadState* python_state() {
  return kReadsFrames ? PyGILState_GetThisThreadState() : nullptr;
}

// This thread's innermost frame; null if it does not run Python.
inline Frame* innermost() {
  PyThreadState* state = python_state();
  Frame* frame = state ? top_frame(state) : nullptr;
  while (frame && is_shim(frame)) frame = back(frame);
  return frame;
}

inline Frame* outer(Frame* frame) {
  do frame = back(frame);
  while (frame && is_shim(frame));
  return frame;
}

}  // namespace stepscope
