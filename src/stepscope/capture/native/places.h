// From frames of Python to contexts.
#pragma once
#include <string>

#include "collector.h"

namespace stepscope {

// The context that an operator called from `frame` hangs under, where `top` is the operator that
// runs in this thread already (or null).
Slot* parent_slot(Thread& thread, Entry* top, Frame* frame);
// Remember where in the program an annotation was opened: its own frames will be gone.
void anchor(Thread& thread, Entry* entry);
// An annotation's name, without the numbers that would make every one new.
// Whether torch.compile says this around what it does: no operator, though told as one. Numbers in
// it are as many as there are compilations.
bool is_of_compiler(const std::string& name);
std::string plain_name(Collector& collector, const std::string& name, Kind kind);

// Learn which frames of the stack run the program rather than being of it.
void learn_frames(Thread& thread);
bool is_module_call(Frame* frame);
// The module that `frame` calls, where that is known; for the handler of a signal.
KeyId known_module(Thread& thread, Frame* frame, KeyId inside);

// What `nn.Module.__call__` runs, and a Python function (module, parent key) -> key.
void set_module_call(PyObject* code, PyObject* resolver);
// Files whose frames are left out, and files whose frames end the stack.
void set_hidden(std::vector<std::string> hidden, std::vector<std::string> barriers,
                std::vector<std::string> annotators);

}  // namespace stepscope
