#include "square.cuh"
__device__ __noinline__ float halve(float a) {
  return a / 3.0f;
}
__global__ void scale(float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    x[i] = square(x[i]);
}
__global__ void total(float* x, const float* y, int n) {
  float sum = 0;
  for (int j = 0; j < n; j++)
    sum += halve(y[j]);
  x[threadIdx.x] = sum;
}
