#pragma once

namespace stepscope {

void attach_pytorch();
void detach_pytorch();
// Tells of the CPU's memory from now on; returns why it cannot, or nothing.
const char* watch_memory();
void unwatch_memory();

}  // namespace stepscope
