// Statistics of a metric's samples.
#pragma once
#include <cstdint>

namespace stepscope {

struct Stat {
  uint64_t count = 0, sum = 0, min = ~uint64_t(0), max = 0;
  double squares = 0;
  void add(uint64_t value) {
    count++;
    sum += value;
    if (value < min) min = value;
    if (value > max) max = value;
    squares += double(value) * double(value);
  }
  void add(const Stat& other) {
    count += other.count;
    sum += other.sum;
    if (other.min < min) min = other.min;
    if (other.max > max) max = other.max;
    squares += other.squares;
  }
};

}  // namespace stepscope
