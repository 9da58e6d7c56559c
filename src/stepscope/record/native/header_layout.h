// The layout of the Python that the extension is built for, from its headers.
#pragma once
#include "python_layout.h"

namespace stepscope {

PythonMemory memory_by_headers();

}  // namespace stepscope
