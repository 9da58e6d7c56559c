#pragma once

namespace stepscope {

void attach_pytorch();
void detach_pytorch();
// Reports operators with their inputs and outputs to watchers of `Domain::tensors`.
void attach_tensors();
void detach_tensors();
// Reports CPU allocations from now on; returns the reason if it cannot, or null.
const char* watch_memory();
void unwatch_memory();

}  // namespace stepscope
