// The Python stack of this thread, read from the interpreter's memory without locks or new objects.
//
// While a thread runs an operator, its Python frames do not change. Versions that known_layouts.h does
// not have, and free-threaded builds, have no Python frames.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <frameobject.h>

#include <cstdint>
#include <cstring>

#include "known_layouts.h"

namespace stepscope {

#if defined(Py_GIL_DISABLED) || PY_VERSION_HEX >= 0x030F0000
#define STEPSCOPE_NO_FRAMES 1
constexpr PythonLayout kLayout{};
#else
constexpr PythonLayout kLayout =
    sizeof(void*) == 8 ? known_layout(PY_VERSION_HEX >> 16) : PythonLayout{};
#endif
constexpr bool kReadsFrames = kLayout.version != 0;
constexpr bool kKeepsAStack = keeps_a_stack(kLayout.version);

// The interpreter's; what of it is read lies where the table says.
struct Frame;

template <class T>
inline T field(const Frame* frame, uint32_t offset) {
  T value;
  memcpy(&value, reinterpret_cast<const char*>(frame) + offset, sizeof value);
  return value;
}

inline PyObject* reference(const Frame* frame, uint32_t offset) {
  uintptr_t tagged = field<uintptr_t>(frame, offset);
  return reinterpret_cast<PyObject*>(tagged & ~tag_bits(kLayout.version));
}

inline Frame* top_frame(PyThreadState* state) {
#if defined(STEPSCOPE_NO_FRAMES)
  return nullptr;
#elif PY_VERSION_HEX >= 0x030D0000
  return reinterpret_cast<Frame*>(state->current_frame);
#elif PY_VERSION_HEX >= 0x030B0000
  return state->cframe ? reinterpret_cast<Frame*>(state->cframe->current_frame) : nullptr;
#else
  return reinterpret_cast<Frame*>(state->frame);
#endif
}

inline Frame* back(Frame* frame) { return field<Frame*>(frame, kLayout.frame_back); }

inline PyCodeObject* code_of(Frame* frame) {
  return reinterpret_cast<PyCodeObject*>(reference(frame, kLayout.frame_code));
}

// The frame's position in its code; code objects that are alive never share positions.
inline uintptr_t position_of(Frame* frame) {
  if (kKeepsAStack) return field<uintptr_t>(frame, kLayout.frame_position);
  return reinterpret_cast<uintptr_t>(code_of(frame)) << 16 ^
         uintptr_t(field<int>(frame, kLayout.frame_position) + 1);
}

inline PyObject* first_argument(Frame* frame) { return reference(frame, kLayout.frame_locals); }

inline bool is_shim(Frame* frame) {
  return is_shim_of(kLayout.version, field<char>(frame, kLayout.frame_owner));
}

inline int line_of(PyCodeObject* code, uintptr_t position) {
#if defined(STEPSCOPE_NO_FRAMES)
  return 0;
#elif PY_VERSION_HEX >= 0x030B0000
  return PyCode_Addr2Line(code, int(position - reinterpret_cast<uintptr_t>(code->co_code_adaptive)));
#else
  uintptr_t start = reinterpret_cast<uintptr_t>(code) << 16;
  return PyCode_Addr2Line(code, (int(position ^ start) - 1) * 2);
#endif
}

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
