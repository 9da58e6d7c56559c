// Calls of functions that a user's file names (docs/reference/shim.md), for devices whose library has
// no callbacks of its own.
#pragma once
#include <Python.h>

namespace stepscope {

// Takes a tuple of (library's glob, function, kind, ((argument, position, bits, is signed), …)): calls
// of these functions from any other library are followed from now on; () ends that. Returns the reason
// if they cannot be followed. A position counts whole numbers and pointers, from 0.
PyObject* follow_libraries(PyObject*, PyObject* functions);

}  // namespace stepscope
