// Where an interpreter keeps its frames, code objects and texts: all that a reader of another
// thread's stack has to know. Without Python's headers, so that one library serves every version.
#pragma once
#include <cstdint>

namespace stepscope {

// Offsets and sizes in bytes. A frame lies on a stack of frames from Python 3.11 on; earlier it is
// an object.
struct PythonLayout {
  uint32_t version;  // such as 0x030B; 0 if stepscope does not know how it stores its frames
  uint32_t frame_code, frame_back, frame_position, frame_owner, frame_locals;
  uint32_t type, item_count;                 // of an object
  uint32_t thread_id, thread_frame;          // of a thread state
  uint32_t inner_frame;                      // of what thread_frame points to, in 3.11 and 3.12
  uint32_t code_bytes, code_file, code_name, code_lines, code_first_line, code_instructions;
  uint32_t code_local_count, code_stack_size;  // words in its frame, after frame_locals; 3.11
  uint32_t code_frame_size;                    // words of its frame; from 3.12 on
  uint32_t text_length, text_state, text_ascii, text_other;  // the last two: where characters begin
  uint32_t kind_shift, compact_bit, ascii_bit;               // of a text's state
  uint32_t bytes_start;
};

// The interpreter in this process: its layout and the addresses of its types.
struct PythonMemory {
  PythonLayout layout;
  const void *code_type, *text_type, *bytes_type, *frame_type;
};

}  // namespace stepscope
