#include "header_layout.h"

#include <cstddef>
#include <cstring>

#include "frames.h"

namespace stepscope {

#if defined(STEPSCOPE_NO_FRAMES)

PythonMemory memory_by_headers() { return {}; }

#else

// Offsets in bit fields cannot be asked for.
static void read_text_state(PythonLayout& layout) {
  auto word_of = [](auto set) {
    PyASCIIObject text{};
    set(text);
    uint32_t word;
    memcpy(&word, reinterpret_cast<char*>(&text) + offsetof(PyASCIIObject, state), sizeof word);
    return word;
  };
  layout.kind_shift = uint32_t(__builtin_ctz(word_of([](auto& text) { text.state.kind = 1; })));
  layout.compact_bit = word_of([](auto& text) { text.state.compact = 1; });
  layout.ascii_bit = word_of([](auto& text) { text.state.ascii = 1; });
}

PythonMemory memory_by_headers() {
  PythonLayout layout{};
  if (!kReadsFrames) return {};
  layout.version = kLayout.version;
  layout.frame_code = kLayout.frame_code;
  layout.frame_back = kLayout.frame_back;
  layout.frame_position = kLayout.frame_position;
  layout.frame_owner = kLayout.frame_owner;
  layout.frame_locals = kLayout.frame_locals;
  layout.type = offsetof(PyObject, ob_type);
  layout.item_count = offsetof(PyVarObject, ob_size);
  layout.thread_id = offsetof(PyThreadState, thread_id);
  layout.code_bytes = sizeof(PyCodeObject);
  layout.code_file = offsetof(PyCodeObject, co_filename);
  layout.code_lines = offsetof(PyCodeObject, co_linetable);
  layout.code_first_line = offsetof(PyCodeObject, co_firstlineno);
#if PY_VERSION_HEX >= 0x030B0000
  layout.code_name = offsetof(PyCodeObject, co_qualname);
  layout.code_instructions = offsetof(PyCodeObject, co_code_adaptive);
#else
  layout.thread_frame = offsetof(PyThreadState, frame);
  layout.code_name = offsetof(PyCodeObject, co_name);
#endif
#if PY_VERSION_HEX >= 0x030D0000
  layout.thread_frame = offsetof(PyThreadState, current_frame);
#elif PY_VERSION_HEX >= 0x030B0000
  layout.thread_frame = offsetof(PyThreadState, cframe);
  layout.inner_frame = offsetof(_PyCFrame, current_frame);
#endif
#if PY_VERSION_HEX >= 0x030C0000
  layout.code_frame_size = offsetof(PyCodeObject, co_framesize);
#elif PY_VERSION_HEX >= 0x030B0000
  layout.code_local_count = offsetof(PyCodeObject, co_nlocalsplus);
  layout.code_stack_size = offsetof(PyCodeObject, co_stacksize);
#endif
  layout.text_length = offsetof(PyASCIIObject, length);
  layout.text_state = offsetof(PyASCIIObject, state);
  layout.text_ascii = sizeof(PyASCIIObject);
  layout.text_other = sizeof(PyCompactUnicodeObject);
  read_text_state(layout);
  layout.bytes_start = offsetof(PyBytesObject, ob_sval);
  return {layout, &PyCode_Type, &PyUnicode_Type, &PyBytes_Type, &PyFrame_Type};
}

#endif

}  // namespace stepscope
