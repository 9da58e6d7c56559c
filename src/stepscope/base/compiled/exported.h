#pragma once

// A function that Python calls.
#define EXPORTED extern "C" __attribute__((visibility("default")))
