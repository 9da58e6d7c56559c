// From frames of Python to contexts.
#pragma once
#include <string>

#include "collector.h"

namespace stepscope {

// The parent context of an operator called from `frame`; `top` is the operator that runs in this
// thread already (or null).
Slot* parent_slot(Thread& thread, Entry* top, Frame* frame);
// Remember where an annotation was opened, as its frames may return before it ends.
void anchor(Thread& thread, Entry* entry);
// Whether this is a range of torch.compile, which is reported like an operator. Its name may contain
// a different number for each compilation.
bool is_of_compiler(const std::string& name);
// An annotation's name, without numbers that would make every one distinct.
std::string plain_name(Collector& collector, const std::string& name, Kind kind);

// Learn which frames of the stack are runners (they launch the program but do not belong to it).
void learn_frames(Thread& thread);
bool is_module_call(const void* code);
// Flags of a frame by its file and function: kHidden, kBarrier, kAnnotator.
uint8_t frame_flags(const std::string& file, const std::string& name);
uint64_t call_of(const void* module, KeyId inside);
// A Python text as UTF-8; what has no such form, as in paths that are no UTF-8, becomes a question mark.
std::string text_of(PyObject* object);

// The code of `nn.Module.__call__`, and a Python function (module, parent key) -> key.
void set_module_call(PyObject* code, PyObject* resolver);
// Files whose frames are hidden, files whose frames end the stack, and files of annotations.
void set_hidden(std::vector<std::string> hidden, std::vector<std::string> barriers,
                std::vector<std::string> annotators);

}  // namespace stepscope
