#pragma once

namespace stepscope {

void attach_pytorch();
void detach_pytorch();

}  // namespace stepscope
