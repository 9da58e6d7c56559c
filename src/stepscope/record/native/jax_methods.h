// The part of the collector's Python interface that only JAX's adapter calls.
#pragma once
#include "collector.h"

namespace stepscope {

extern PyMethodDef jax_methods[];
// The active collector, or else the last one; null before the first.
Collector* last_collector();

}  // namespace stepscope
